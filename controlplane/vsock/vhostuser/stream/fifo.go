package stream

// blockSize is the unit in which queued bytes take memory. An empty fifo
// takes none, so that a thousand idle connections cost nothing.
const blockSize = 16 << 10

// maxSpare bounds the blocks kept for reuse.
const maxSpare = 64

type block [blockSize]byte

// blocks is a free list, shared by the fifos of one Mux.
type blocks struct {
	spare []*block
}

func (p *blocks) get() *block {
	if n := len(p.spare); n > 0 {
		b := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return b
	}
	return new(block)
}

func (p *blocks) put(b *block) {
	if len(p.spare) < maxSpare {
		p.spare = append(p.spare, b)
	}
}

// fifo is a queue of bytes. Bytes, not packets, so that a peer that sends one
// byte at a time cannot make it cost more than its length and one block.
type fifo struct {
	pool  *blocks
	queue []*block
	head  int // offset of the first byte in queue[0]
	len   int
}

// write appends p. The caller has checked that it may.
func (f *fifo) write(p []byte) {
	for len(p) > 0 {
		at := f.head + f.len
		if at == len(f.queue)*blockSize {
			f.queue = append(f.queue, f.pool.get())
		}
		n := copy(f.queue[at/blockSize][at%blockSize:], p)
		f.len += n
		p = p[n:]
	}
}

// read moves up to len(p) bytes out.
func (f *fifo) read(p []byte) int {
	total := 0
	for len(p) > 0 && f.len > 0 {
		n := copy(p, f.first())
		f.discard(n)
		total += n
		p = p[n:]
	}
	return total
}

// first returns the bytes at the front that lie in one piece.
func (f *fifo) first() []byte {
	return f.queue[0][f.head:min(f.head+f.len, blockSize)]
}

// peek appends the pieces of the first n bytes to segs, n ≤ len.
func (f *fifo) peek(segs [][]byte, n int) [][]byte {
	at := f.head
	for i := 0; n > 0; i++ {
		seg := f.queue[i][at:min(at+n, blockSize)]
		segs = append(segs, seg)
		n -= len(seg)
		at = 0
	}
	return segs
}

// discard drops the first n bytes, n ≤ len. Pieces given out by peek keep
// their content until the next write to any fifo of the pool.
func (f *fifo) discard(n int) {
	f.len -= n
	f.head += n
	done := f.head / blockSize
	if f.len == 0 {
		done = len(f.queue)
	}
	for i := range done {
		f.pool.put(f.queue[i])
		f.queue[i] = nil
	}
	f.queue = f.queue[done:]
	f.head %= blockSize
	if f.len == 0 {
		f.queue, f.head = nil, 0
	}
}

// clear drops everything.
func (f *fifo) clear() {
	f.discard(f.len)
}
