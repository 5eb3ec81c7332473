package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// request is the type of a vhost-user message.
type request uint32

// The requests that we know.
const (
	reqGetFeatures         request = 1
	reqSetFeatures         request = 2
	reqSetOwner            request = 3
	reqResetOwner          request = 4
	reqSetMemTable         request = 5
	reqSetVringNum         request = 8
	reqSetVringAddr        request = 9
	reqSetVringBase        request = 10
	reqGetVringBase        request = 11
	reqSetVringKick        request = 12
	reqSetVringCall        request = 13
	reqSetVringErr         request = 14
	reqGetProtocolFeatures request = 15
	reqSetProtocolFeatures request = 16
	reqGetQueueNum         request = 17
	reqSetVringEnable      request = 18
	reqGetConfig           request = 24
	reqSetConfig           request = 25
)

// Bits of the flags word.
const (
	flagVersion     = 1
	flagVersionMask = 3
	flagReply       = 4
	flagNeedReply   = 8
)

// Bounds of one message.
const (
	headSize = 12
	maxBody  = 1024
	maxFDs   = 8
)

// message is one request with the descriptors that came with it. Whoever
// keeps a descriptor takes it out by takeFD; close closes the rest.
type message struct {
	req   request
	flags uint32
	body  []byte
	fds   []int
}

func (m *message) takeFD() (int, error) {
	if len(m.fds) != 1 || m.fds[0] < 0 {
		return -1, fmt.Errorf("request %d came with %d descriptors, want 1", m.req, len(m.fds))
	}
	fd := m.fds[0]
	m.fds[0] = -1
	return fd, nil
}

func (m *message) close() {
	for _, fd := range m.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	m.fds = nil
}

// u64 is the body of requests that carry one number.
func (m *message) u64() (uint64, error) {
	if len(m.body) != 8 {
		return 0, fmt.Errorf("request %d has a body of %d bytes, want 8", m.req, len(m.body))
	}
	return binary.LittleEndian.Uint64(m.body), nil
}

// state is the body of requests about one ring: its index and a number.
func (m *message) state() (index, num uint32, err error) {
	if len(m.body) != 8 {
		return 0, 0, fmt.Errorf("request %d has a body of %d bytes, want 8", m.req, len(m.body))
	}
	index = binary.LittleEndian.Uint32(m.body)
	if index >= numRings {
		return 0, 0, fmt.Errorf("request %d is for ring %d of %d", m.req, index, numRings)
	}
	return index, binary.LittleEndian.Uint32(m.body[4:]), nil
}

// readMessage reads one message. On an error nothing of it is left open.
func readMessage(conn *net.UnixConn) (*message, error) {
	m := &message{}
	var head [headSize]byte
	if err := m.read(conn, head[:]); err != nil {
		m.close()
		return nil, err
	}
	m.req = request(binary.LittleEndian.Uint32(head[0:]))
	m.flags = binary.LittleEndian.Uint32(head[4:])
	size := binary.LittleEndian.Uint32(head[8:])
	if m.flags&flagVersionMask != flagVersion || m.flags&flagReply != 0 || size > maxBody {
		m.close()
		return nil, fmt.Errorf("message with flags %#x and size %d is not of this protocol", m.flags, size)
	}
	m.body = make([]byte, size)
	if err := m.read(conn, m.body); err != nil {
		m.close()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return m, nil
}

// read fills b and collects descriptors on the way.
func (m *message) read(conn *net.UnixConn, b []byte) error {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	for done := 0; done < len(b); {
		n, oobn, flags, _, err := conn.ReadMsgUnix(b[done:], oob)
		if ferr := m.collect(oob[:oobn]); ferr != nil {
			return ferr
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return fmt.Errorf("message with more than %d descriptors", maxFDs)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			if done > 0 {
				return io.ErrUnexpectedEOF
			}
			return io.EOF
		}
		done += n
	}
	return nil
}

// collect takes the descriptors out of control data. They are close-on-exec
// because package net asks for that.
func (m *message) collect(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("cannot parse control data: %w", err)
	}
	for _, c := range msgs {
		fds, err := unix.ParseUnixRights(&c)
		if err != nil {
			continue // other control data carries no descriptors
		}
		m.fds = append(m.fds, fds...)
	}
	if len(m.fds) > maxFDs {
		return fmt.Errorf("message with %d descriptors", len(m.fds))
	}
	return nil
}

// reply answers a message.
func (m *message) reply(w io.Writer, body []byte) error {
	b := make([]byte, headSize, headSize+len(body))
	binary.LittleEndian.PutUint32(b[0:], uint32(m.req))
	binary.LittleEndian.PutUint32(b[4:], flagVersion|flagReply)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(body)))
	if _, err := w.Write(append(b, body...)); err != nil {
		return fmt.Errorf("cannot answer request %d: %w", m.req, err)
	}
	return nil
}

func (m *message) replyU64(w io.Writer, v uint64) error {
	return m.reply(w, binary.LittleEndian.AppendUint64(nil, v))
}
