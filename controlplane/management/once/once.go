// Package once carries out a request with an Idempotency-Key once, however
// often it is sent (draft-ietf-httpapi-idempotency-key-header-07).
//
// The key is stored with the hash of the request and the id of the operation
// that the request may begin, before it is carried out; the answer is stored
// before it is sent. So a repetition finds either the answer, or the operation
// that a dead process began, or nothing that has happened.
//
//	reserve ── carry out ── store the answer ── send it
//	   └─ of another request: 422   └─ at work: 409   └─ known: sent again
//
// It knows HTTP and no API: what operations are is its user's.
package once

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// The headers of this protocol.
const (
	Header         = "Idempotency-Key"
	ReplayedHeader = "Idempotent-Replayed"
)

// Key names a request. Two principals never share one.
type Key struct {
	Tenant    string
	Principal string
	Name      string
}

// Reservation is what is known of a request.
type Reservation struct {
	// Hash is that of the first request under the key.
	Hash string
	// OperationID is the id of the operation that the request began, if it
	// began one. It is chosen before.
	OperationID string
	// Answer is nil until the request was answered for good.
	Answer *Answer
}

// Answer is what a client was told.
type Answer struct {
	Status int
	// Header holds those of the answer that belong to it.
	Header map[string]string
	Body   []byte
}

// Bounds limit what is remembered.
type Bounds struct {
	// TTL is how long a request is remembered after it came first.
	TTL time.Duration
	// Entries is how many requests of one principal are; the oldest answered
	// ones are forgotten first.
	Entries int
}

// Store remembers requests. What has returned nil has reached the disk.
type Store interface {
	// Reserve returns what is known of a request, or, if that is nothing or too
	// old, stores want as the beginning of it and returns that.
	Reserve(ctx context.Context, k Key, want Reservation, at time.Time, b Bounds) (Reservation, error)
	// Answered stores how a request was answered; a first answer stays. The
	// operation's id tells the reservation from a later one under the same key.
	Answered(ctx context.Context, k Key, operationID string, a Answer) error
}

// Errors that Config.Fail is given.
var (
	ErrForm     = errors.New("want one key of 1 to 128 visible characters, with or without quotes around it")
	ErrReused   = errors.New("the key was used for another request")
	ErrInFlight = errors.New("the first request with this key is still at work")
	ErrBody     = errors.New("the body cannot be read to its end")
)

// Config is what New needs; nothing may be nil but Log and Now.
type Config struct {
	Store Store
	// Principal says whose request it is.
	Principal func(r *http.Request) (tenant, name string)
	// Bind returns ctx in which the next operation gets the given id.
	Bind func(ctx context.Context, operationID string) context.Context
	// Find answers with the operation of that id, which an earlier request
	// began, and reports whether there was one to answer with.
	Find func(w http.ResponseWriter, r *http.Request, operationID string) bool
	// Fail answers with an error: one of the above or one of the store.
	// ErrBody wraps its cause, such as an *http.MaxBytesError.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// MaxBody bounds the body of a request with a key, in bytes.
	MaxBody int64
	Bounds  Bounds
	Log     *slog.Logger
	Now     func() time.Time
}

// maxAnswer bounds an answer that is kept.
const maxAnswer = 1 << 20

// Handler is the middleware of one API. Safe for concurrent use.
type Handler struct {
	cfg Config

	mu     sync.Mutex
	atWork map[Key]bool // what this process carries out now
}

// New makes a Handler.
func New(cfg Config) *Handler {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Handler{cfg: cfg, atWork: map[Key]bool{}}
}

// Wrap lets next carry out requests without a key, and new ones with.
func (h *Handler) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(Header)
		if len(values) == 0 || !changes(r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		name, err := ParseKey(values)
		if err != nil {
			h.cfg.Fail(w, r, err)
			return
		}
		tenant, principal := h.cfg.Principal(r)
		h.once(w, r, Key{Tenant: tenant, Principal: principal, Name: name}, next)
	})
}

func changes(method string) bool {
	return method == http.MethodPost || method == http.MethodPatch || method == http.MethodDelete
}

func (h *Handler) once(w http.ResponseWriter, r *http.Request, k Key, next http.Handler) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBody))
	if err != nil {
		h.cfg.Fail(w, r, fmt.Errorf("%w: %w", ErrBody, err))
		return
	}
	if !h.enter(k) {
		h.cfg.Fail(w, r, ErrInFlight)
		return
	}
	defer h.leave(k)
	id, err := uuid.NewV7()
	if err != nil {
		h.cfg.Fail(w, r, err)
		return
	}
	want := Reservation{Hash: Hash(r, body), OperationID: id.String()}
	got, err := h.cfg.Store.Reserve(r.Context(), k, want, h.cfg.Now(), h.cfg.Bounds)
	switch {
	case err != nil && r.Method == http.MethodDelete:
		// What is removed twice is removed, and this may be what makes room on
		// the disk that is too full to store the key.
		h.cfg.Log.WarnContext(r.Context(), "removing something without a record of the request's key", "error", err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
		return
	case err != nil:
		h.cfg.Fail(w, r, err)
		return
	case got.Hash != want.Hash:
		h.cfg.Fail(w, r, ErrReused)
		return
	case got.Answer != nil:
		w.Header().Set(ReplayedHeader, "true")
		got.Answer.send(w)
		return
	}
	out := &buffer{header: w.Header()}
	// An older reservation without an answer is that of a process that died, or
	// of a request that failed by no fault of its own.
	if got.OperationID != want.OperationID && h.cfg.Find(out, r, got.OperationID) {
		w.Header().Set(ReplayedHeader, "true")
	} else {
		again := r.WithContext(h.cfg.Bind(r.Context(), got.OperationID))
		again.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(out, again)
	}
	if answer := out.answer(); keeps(answer) {
		if err := h.cfg.Store.Answered(context.WithoutCancel(r.Context()), k, got.OperationID, answer); err != nil {
			// The operation is found by its id: the answer can be made again.
			h.cfg.Log.ErrorContext(r.Context(), "cannot store the answer to a request with a key", "error", err)
		}
	}
	out.answer().sendBody(w)
}

func (h *Handler) enter(k Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.atWork[k] {
		return false
	}
	h.atWork[k] = true
	return true
}

func (h *Handler) leave(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.atWork, k)
}

// keeps reports whether a repetition shall be told the same. What went wrong
// by no fault of the request may go well the next time.
func keeps(a Answer) bool {
	switch a.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return a.Status < http.StatusInternalServerError && len(a.Body) <= maxAnswer
}

var keyForm = regexp.MustCompile(`^[!#-~]{1,128}$`)

// ParseKey reads the values of the header. The draft wants a structured
// string, which has quotes; many clients send none.
func ParseKey(values []string) (string, error) {
	if len(values) != 1 {
		return "", ErrForm
	}
	key := values[0]
	if len(key) >= 2 && strings.HasPrefix(key, `"`) && strings.HasSuffix(key, `"`) {
		key = key[1 : len(key)-1]
	}
	if !keyForm.MatchString(key) {
		return "", ErrForm
	}
	return key, nil
}

// Hash tells requests apart: by method, path, query, the headers that change
// what is asked for, and the bytes of the body.
func Hash(r *http.Request, body []byte) string {
	sum := sha256.New()
	for _, part := range [][]byte{
		[]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery),
		[]byte(r.Header.Get("Content-Type")), []byte(r.Header.Get("If-Match")), body,
	} {
		_ = binary.Write(sum, binary.BigEndian, uint64(len(part))) // a hash takes everything
		_, _ = sum.Write(part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
