package fleet

import (
	"context"
	"sync/atomic"
)

type operationIDKey struct{}

// reservedID is an id that the first operation which asks for it gets.
type reservedID struct {
	id    string
	taken atomic.Bool
}

// WithOperationID returns ctx in which the next operation that is opened gets
// this id, a UUID of version 7. Whoever has stored the id before finds the
// operation again, whatever died since.
func WithOperationID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, operationIDKey{}, &reservedID{id: id})
}

// takeOperationID returns the id that was reserved for the next operation;
// empty if none was, or it has been taken.
func takeOperationID(ctx context.Context) string {
	r, ok := ctx.Value(operationIDKey{}).(*reservedID)
	if !ok || !r.taken.CompareAndSwap(false, true) {
		return ""
	}
	return r.id
}
