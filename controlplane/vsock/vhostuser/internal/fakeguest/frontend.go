package fakeguest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Features as QEMU 7.2 negotiates them.
const (
	featIndirect = 1 << 28
	featEventIdx = 1 << 29
	featBase     = 1<<30 | 1<<32
)

// Call sends one vhost-user request, and returns the body of the answer when
// there is one: for requests that have it, and for any with needReply set.
func (g *Guest) Call(req uint32, needReply bool, body []byte, fds ...int) ([]byte, error) {
	if g.conn == nil {
		return nil, errors.New("device is not plugged")
	}
	flags := uint32(1)
	if needReply {
		flags |= 8
	}
	b := binary.LittleEndian.AppendUint32(nil, req)
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := g.conn.WriteMsgUnix(append(b, body...), oob, nil); err != nil {
		return nil, err
	}
	switch req {
	case 1, 11, 15, 17, 24:
	default:
		if !needReply {
			return nil, nil
		}
	}
	var head [12]byte
	if _, err := io.ReadFull(g.conn, head[:]); err != nil {
		return nil, err
	}
	if got := binary.LittleEndian.Uint32(head[0:]); got != req {
		return nil, fmt.Errorf("answer to request %d is for %d", req, got)
	}
	answer := make([]byte, binary.LittleEndian.Uint32(head[8:]))
	_, err := io.ReadFull(g.conn, answer)
	return answer, err
}

// script runs requests until one fails.
type script struct {
	g   *Guest
	err error
}

func (s *script) call(req uint32, needReply bool, body []byte, fds ...int) []byte {
	if s.err != nil {
		return nil
	}
	answer, err := s.g.Call(req, needReply, body, fds...)
	if err == nil && needReply && (len(answer) != 8 || binary.LittleEndian.Uint64(answer) != 0) {
		err = fmt.Errorf("request %d was refused", req)
	}
	s.err = err
	return answer
}

func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

func state(index, num uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, index), num)
}

func (s *script) calls(order ...int) {
	for _, i := range order {
		s.call(13, false, u64(uint64(i)), s.g.rings[i].callFD)
	}
}

func (g *Guest) realize() error {
	s := &script{g: g}
	s.call(1, false, nil)
	s.call(15, false, nil)
	s.call(16, false, u64(0x209))
	s.call(17, false, nil)
	s.call(3, false, nil)
	s.call(1, false, nil)
	for i := range g.rings {
		s.calls(i)
		s.call(14, false, u64(uint64(i)), g.rings[i].kick)
	}
	config := s.call(24, false, append(state(0, 8), make([]byte, 12)...))
	if s.err == nil && len(config) != 20 {
		return fmt.Errorf("configuration of %d bytes", len(config))
	}
	return s.err
}

// table is the memory table with one region.
func (g *Guest) table() []byte {
	b := state(1, 0)
	for _, v := range []uint64{guestBase, uint64(len(g.memory)), userBase, 0} {
		b = append(b, u64(v)...)
	}
	return b
}

// SetMemory sends the memory table, as QEMU does when memory is plugged.
func (g *Guest) SetMemory() error {
	s := &script{g: g}
	s.call(5, true, g.table(), g.file)
	return s.err
}

func (g *Guest) startRings(bases ...uint32) error {
	s := &script{g: g}
	s.calls(1, 0)
	features := uint64(featBase)
	if g.opts.EventIdx {
		features |= featEventIdx
	}
	if g.opts.Indirect {
		features |= featIndirect
	}
	s.call(2, false, u64(features))
	s.call(5, true, g.table(), g.file)
	for i := range g.rings {
		l := layout(i)
		s.call(8, false, state(uint32(i), ringSize))
		s.call(10, false, state(uint32(i), bases[i]))
		addr := state(uint32(i), 0)
		for _, off := range []uint64{l.desc, l.used, l.avail, 0} {
			addr = append(addr, u64(userBase+off)...)
		}
		s.call(9, false, addr)
		s.call(12, false, u64(uint64(i)), g.rings[i].kick)
	}
	s.call(18, false, state(0, 1))
	s.call(18, false, state(1, 1))
	s.calls(0, 1)
	// The device answers in order, so this says that it has seen it all.
	s.call(1, false, nil)
	return s.err
}

func (g *Guest) stopRings() (rxBase, txBase uint32, err error) {
	s := &script{g: g}
	s.call(18, false, state(0, 0))
	s.call(18, false, state(1, 0))
	var bases [2]uint32
	for i := range g.rings {
		answer := s.call(11, false, state(uint32(i), 0))
		if s.err == nil && len(answer) != 8 {
			s.err = fmt.Errorf("ring base of %d bytes", len(answer))
		}
		if s.err == nil {
			bases[i] = binary.LittleEndian.Uint32(answer[4:])
		}
	}
	s.calls(0, 1)
	return bases[0], bases[1], s.err
}
