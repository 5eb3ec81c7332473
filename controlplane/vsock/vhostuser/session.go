package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/stream"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/virtq"
)

// Feature bits of the device and of the vhost-user protocol. No logging, no
// packed rings, no in-order: QEMU cannot migrate the device, and each would
// be code that a hostile guest can reach.
const (
	featIndirect   = 1 << 28
	featEventIdx   = 1 << 29
	featProtocol   = 1 << 30
	featVersion1   = 1 << 32
	featOffered    = featIndirect | featEventIdx | featProtocol | featVersion1
	protoMultiQ    = 1 << 0
	protoReplyAck  = 1 << 3
	protoConfig    = 1 << 9
	protoOffered   = protoMultiQ | protoReplyAck | protoConfig
	configSize     = 8
	kickWithoutFD  = 1 << 8
	vringIndexMask = 0xff
)

// session is one connection of QEMU, from plug to unplug. All but conn is
// guarded by the device's mutex.
type session struct {
	dev  *Device
	conn *net.UnixConn

	features, protocol uint64
	mem                *memTable
	rings              [numRings]vring
	running            bool
	broken             bool // the guest made no sense; waits for a reset
	kicks              sync.WaitGroup

	chain   virtq.Chain // scratch of the pump
	payload [][]byte
	put     func(stream.Header, [][]byte)
}

func newSession(d *Device, conn *net.UnixConn) *session {
	s := &session{dev: d, conn: conn}
	for i := range s.rings {
		s.rings[i].left = -1
	}
	s.put = s.write
	return s
}

// serve answers messages until the front-end hangs up.
func (s *session) serve() error {
	for {
		m, err := readMessage(s.conn)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read a message: %w", err)
		}
		if err := s.answer(m); err != nil {
			return err
		}
	}
}

// answer handles one message and sends the reply it asks for. The device's
// mutex is not held while the reply is written.
func (s *session) answer(m *message) error {
	defer m.close()
	reply, err := s.handle(m)
	switch {
	case reply != nil:
		return m.reply(s.conn, reply)
	case m.flags&flagNeedReply != 0 && s.protocol&protoReplyAck != 0:
		var nack uint64
		if err != nil {
			nack = 1
		}
		if werr := m.replyU64(s.conn, nack); werr != nil {
			return werr
		}
	}
	return err
}

func (s *session) handle(m *message) (reply []byte, err error) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	// Starting a ring reads guest memory.
	fault := guarded(func() { reply, err = s.dispatch(m) })
	if fault != nil {
		s.halt(fault)
		return nil, fault
	}
	return reply, err
}

func (s *session) dispatch(m *message) ([]byte, error) {
	switch m.req {
	case reqGetFeatures:
		return binary.LittleEndian.AppendUint64(nil, featOffered), nil
	case reqGetProtocolFeatures:
		return binary.LittleEndian.AppendUint64(nil, protoOffered), nil
	case reqGetQueueNum:
		return binary.LittleEndian.AppendUint64(nil, numRings), nil
	case reqSetFeatures:
		return nil, setBits(m, &s.features, featOffered)
	case reqSetProtocolFeatures:
		return nil, setBits(m, &s.protocol, protoOffered)
	case reqSetOwner:
		return nil, nil
	case reqResetOwner:
		s.stop()
		return nil, nil
	case reqSetMemTable:
		return nil, s.setMemory(m)
	case reqGetConfig:
		return s.getConfig(m)
	case reqSetVringKick, reqSetVringCall, reqSetVringErr:
		return nil, s.setDescriptor(m)
	case reqSetVringAddr:
		return nil, s.setAddr(m)
	case reqSetVringNum, reqSetVringBase, reqGetVringBase, reqSetVringEnable:
		return s.ringState(m)
	}
	return nil, fmt.Errorf("request %d is not known", m.req)
}

func setBits(m *message, to *uint64, offered uint64) error {
	v, err := m.u64()
	if err != nil {
		return err
	}
	if v&^offered != 0 {
		return fmt.Errorf("request %d asks for %#x of %#x", m.req, v, offered)
	}
	*to = v
	return nil
}

// getConfig reads from the device's configuration: the guest's address.
func (s *session) getConfig(m *message) ([]byte, error) {
	if len(m.body) < 12 {
		return nil, fmt.Errorf("configuration request of %d bytes", len(m.body))
	}
	offset, size := binary.LittleEndian.Uint32(m.body), binary.LittleEndian.Uint32(m.body[4:])
	if offset > configSize || size > configSize-offset || len(m.body) != 12+int(size) {
		return nil, fmt.Errorf("configuration request for %d bytes at %d", size, offset)
	}
	config := binary.LittleEndian.AppendUint64(nil, s.dev.cfg.GuestCID)
	copy(m.body[12:], config[offset:offset+size])
	return m.body, nil
}

// setMemory changes the memory table, also beneath running rings: QEMU does
// that when memory is plugged.
func (s *session) setMemory(m *message) error {
	mem, err := mapMemory(m)
	if err != nil {
		return err
	}
	defer s.mem.unmap() // the old one, after the rings have left it
	s.mem = mem
	for i := range s.rings {
		v := &s.rings[i]
		if v.ring == nil {
			continue
		}
		if err := v.ring.Rebase(mem.Memory, v.layout); err != nil {
			s.pause()
			return fmt.Errorf("cannot move ring %d to new memory: %w", i, err)
		}
	}
	s.update()
	return nil
}

// setDescriptor takes the eventfd of a ring.
func (s *session) setDescriptor(m *message) error {
	v, err := m.u64()
	if err != nil {
		return err
	}
	index := v & vringIndexMask
	if index >= numRings || v&^(vringIndexMask|kickWithoutFD) != 0 {
		return fmt.Errorf("request %d is for ring %#x", m.req, v)
	}
	r := &s.rings[index]
	if v&kickWithoutFD != 0 {
		if m.req == reqSetVringKick {
			return errors.New("a ring without a doorbell is not supported")
		}
		if m.req == reqSetVringCall {
			r.setCall(nil)
		}
		return nil
	}
	if m.req == reqSetVringErr {
		return nil // closed with the message: our log tells more
	}
	fd, err := m.takeFD()
	if err != nil {
		return err
	}
	f, err := asEventFD(fd)
	if err != nil {
		return fmt.Errorf("cannot take the descriptor of request %d: %w", m.req, err)
	}
	if m.req == reqSetVringCall {
		r.setCall(f)
		return nil
	}
	r.setKick(f, &s.kicks, s.dev.poke)
	s.update()
	return nil
}

// setAddr takes the addresses of a ring.
func (s *session) setAddr(m *message) error {
	if len(m.body) != 40 {
		return fmt.Errorf("ring addresses of %d bytes", len(m.body))
	}
	le := binary.LittleEndian
	index, flags := le.Uint32(m.body), le.Uint32(m.body[4:])
	if index >= numRings || flags != 0 {
		return fmt.Errorf("addresses for ring %d with flags %#x", index, flags)
	}
	v := &s.rings[index]
	if err := v.stopped(m.req); err != nil {
		return err
	}
	v.layout.Desc, v.layout.Used, v.layout.Avail = le.Uint64(m.body[8:]), le.Uint64(m.body[16:]), le.Uint64(m.body[24:])
	v.placed = true
	return nil
}

// ringState handles the requests that carry a ring's index and a number.
func (s *session) ringState(m *message) ([]byte, error) {
	index, num, err := m.state()
	if err != nil {
		return nil, err
	}
	v := &s.rings[index]
	switch m.req {
	case reqSetVringEnable:
		v.enabled = num != 0
		s.update()
		return nil, nil
	case reqGetVringBase:
		v.closeKick()
		s.update()
		if s.broken {
			s.broken, v.left = false, -1
		}
		reply := binary.LittleEndian.AppendUint32(nil, index)
		return binary.LittleEndian.AppendUint32(reply, uint32(v.layout.Base)), nil
	}
	if err := v.stopped(m.req); err != nil {
		return nil, err
	}
	if num > 1<<16-1 {
		return nil, fmt.Errorf("request %d with %d for ring %d", m.req, num, index)
	}
	if m.req == reqSetVringNum {
		v.layout.Size = num
	} else {
		v.layout.Base = uint16(num)
	}
	return nil, nil
}

// close lets go of everything. The caller holds the mutex and has closed conn.
func (s *session) close() {
	s.stop()
	for i := range s.rings {
		s.rings[i].close()
	}
	s.mem.unmap()
	s.mem = nil
}

// hangUp makes serve return.
func (s *session) hangUp() {
	_ = s.conn.Close()
}
