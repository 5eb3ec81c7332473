package engine

import (
	"errors"
	"slices"
	"sync"
)

// feed reads the input for one attachment.
type feed struct {
	d    *dialog
	pos  int
	once sync.Once
	stop chan struct{}
}

// Read waits for the next answer.
func (f *feed) Read(p []byte) (int, error) {
	for {
		n, wake := f.next(p)
		if n > 0 {
			return n, nil
		}
		select {
		case <-wake:
		case <-f.stop:
			return 0, errDetached
		}
	}
}

var errDetached = errors.New("nobody follows the run any more")

func (f *feed) next(p []byte) (int, <-chan struct{}) {
	d := f.d
	d.mu.Lock()
	defer d.mu.Unlock()
	n := copy(p, d.log[min(f.pos, len(d.log)):])
	f.pos += n
	d.given = max(d.given, f.pos)
	return n, d.wake
}

// Close ends a Read that waits.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.stop) })
	return nil
}

// add appends an answer to the input. Called with mu held.
func (d *dialog) add(answer []byte) {
	d.log = append(slices.Clip(d.log), answer...)
	close(d.wake)
	d.wake = make(chan struct{})
}
