package invoke

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

var errFrameTooLong = errors.New("server sent an event that is too long")

// frames reads the data of server-sent events.
type frames struct {
	r     *bufio.Reader
	limit int // bytes of one event
}

func newFrames(r io.Reader, limit int) *frames {
	return &frames{r: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// maxID bounds what is kept of an event's id; a longer one is not kept.
const maxID = 128

// next returns the data of the next event that has any, and its id, which may
// be empty. An event that the end of the stream cuts off is not delivered.
func (f *frames) next() (data []byte, id string, err error) {
	has := false
	for {
		line, err := f.line(f.limit - len(data))
		if err != nil {
			return nil, "", err
		}
		if len(line) == 0 {
			if has {
				return data, id, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			if len(value) <= maxID {
				id = string(value)
			}
		case "data":
			if has {
				data = append(data, '\n')
			}
			has = true
			data = append(data, value...)
			if len(data) > f.limit {
				return nil, "", errFrameTooLong
			}
		} // comments and names carry nothing for us
	}
}

// line reads one line without its end, be it LF or CR LF.
func (f *frames) line(limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := f.r.ReadSlice('\n')
		if len(line)+len(part) > limit+len("data: \r\n") {
			return nil, errFrameTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		default:
			return nil, fmt.Errorf("cannot read event stream: %w", err)
		}
	}
}
