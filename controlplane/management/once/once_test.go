package once_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
)

// memory is a store that forgets nothing but unanswered entries on request.
type memory struct {
	mu   sync.Mutex
	all  map[once.Key]once.Reservation
	fail error
}

func (m *memory) Reserve(_ context.Context, k once.Key, want once.Reservation, _ time.Time, _ once.Bounds) (once.Reservation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return once.Reservation{}, m.fail
	}
	if r, ok := m.all[k]; ok {
		return r, nil
	}
	m.all[k] = want
	return want, nil
}

func (m *memory) Answered(ctx context.Context, k once.Key, op string, a once.Answer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[k]
	if r.OperationID == op && r.Answer == nil {
		r.Answer = &a
		m.all[k] = r
	}
	return m.fail
}

type opKey struct{}

// rig is a handler whose operations are remembered.
type rig struct {
	*memory
	handler http.Handler
	made    sync.Map // operation ids
	calls   atomic.Int64
	status  atomic.Int64
}

// newRig makes one on a store; a second on the same store is a new process.
func newRig(store *memory, serve http.HandlerFunc) *rig {
	r := &rig{memory: store}
	r.status.Store(http.StatusAccepted)
	if serve == nil {
		serve = func(w http.ResponseWriter, req *http.Request) {
			r.calls.Add(1)
			id, _ := req.Context().Value(opKey{}).(string)
			body, _ := io.ReadAll(req.Body)
			if r.status.Load() < 300 {
				r.made.Store(id, true)
			}
			w.Header().Set("Location", "/operations/"+id)
			w.WriteHeader(int(r.status.Load()))
			fmt.Fprintf(w, "%s %s", id, body)
		}
	}
	r.handler = once.New(once.Config{
		Store:     store,
		Principal: func(req *http.Request) (string, string) { return "t", req.Header.Get("From") },
		Bind:      func(ctx context.Context, id string) context.Context { return context.WithValue(ctx, opKey{}, id) },
		Find: func(w http.ResponseWriter, _ *http.Request, id string) bool {
			if _, ok := r.made.Load(id); !ok {
				return false
			}
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, id+" found")
			return true
		},
		Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
			status := http.StatusInternalServerError
			var large *http.MaxBytesError
			switch {
			case errors.Is(err, once.ErrForm):
				status = 400
			case errors.Is(err, once.ErrInFlight):
				status = 409
			case errors.Is(err, once.ErrReused):
				status = 422
			case errors.As(err, &large):
				status = 413
			}
			w.WriteHeader(status)
			fmt.Fprint(w, err)
		},
		MaxBody: 1 << 10,
	}).Wrap(serve)
	return r
}

func newMemory() *memory { return &memory{all: map[once.Key]once.Reservation{}} }

func (r *rig) send(method, path, key, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if key != "" {
		req.Header.Set(once.Header, key)
	}
	w := httptest.NewRecorder()
	w.Header().Set("X-Request-Id", "r")
	r.handler.ServeHTTP(w, req)
	return w
}

func TestSameRequestSameAnswer(t *testing.T) {
	store := newMemory()
	r := newRig(store, nil)
	first := r.send("POST", "/x?a=1", `"k1"`, "body")
	for i, again := range []*httptest.ResponseRecorder{
		r.send("POST", "/x?a=1", "k1", "body"), // the quotes do not belong to the key
		newRig(store, nil).send("POST", "/x?a=1", `"k1"`, "body"),
	} {
		if again.Code != first.Code || !bytes.Equal(again.Body.Bytes(), first.Body.Bytes()) ||
			again.Header().Get("Location") != first.Header().Get("Location") {
			t.Errorf("%d: %d %s, want %d %s", i, again.Code, again.Body, first.Code, first.Body)
		}
		if again.Header().Get(once.ReplayedHeader) != "true" || first.Header().Get(once.ReplayedHeader) != "" {
			t.Errorf("%d: replayed is %q", i, again.Header().Get(once.ReplayedHeader))
		}
	}
	if n := r.calls.Load(); n != 1 {
		t.Errorf("carried out %d times", n)
	}
	if !strings.HasSuffix(first.Body.String(), " body") {
		t.Errorf("the handler got another body: %s", first.Body)
	}
}

func TestAnotherRequestIsRefused(t *testing.T) {
	r := newRig(newMemory(), nil)
	r.send("POST", "/x?a=1", "k1", "body")
	for _, c := range [][3]string{{"POST", "/x?a=1", "other"}, {"POST", "/x?a=2", "body"}, {"POST", "/y?a=1", "body"}, {"DELETE", "/x?a=1", "body"}} {
		if w := r.send(c[0], c[1], "k1", c[2]); w.Code != http.StatusUnprocessableEntity {
			t.Errorf("%v: %d", c, w.Code)
		}
	}
	if n := r.calls.Load(); n != 1 {
		t.Errorf("carried out %d times", n)
	}
}

func TestPrincipalsDoNotShareKeys(t *testing.T) {
	r := newRig(newMemory(), nil)
	bodies := map[string]bool{}
	for _, from := range []string{"alice", "bob"} {
		req := httptest.NewRequest(http.MethodPost, "/", nil)
		req.Header.Set(once.Header, "k")
		req.Header.Set("From", from)
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, req)
		bodies[w.Body.String()] = true
	}
	if len(bodies) != 2 {
		t.Errorf("answers are %v", bodies)
	}
}

func TestKeyForms(t *testing.T) {
	r := newRig(newMemory(), nil)
	for key, want := range map[string]int{
		"a": 202, `"a-b"`: 202, strings.Repeat("k", 128): 202, strings.Repeat("k", 129): 400, `""`: 400, `"`: 400,
		"two words": 400, "ü": 400, `a"b`: 400,
	} {
		if w := r.send("POST", "/"+strconv.Itoa(len(key)), key, ""); w.Code != want {
			t.Errorf("key %q: %d, want %d", key, w.Code, want)
		}
	}
	if w := r.send("POST", "/", "large", strings.Repeat("x", 1<<10+1)); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("large body: %d", w.Code)
	}
	for _, method := range []string{"GET", "PUT"} {
		r.send(method, "/g", "same", "")
		if w := r.send(method, "/other", "same", ""); w.Code != 202 {
			t.Errorf("%s is held against its key: %d", method, w.Code)
		}
	}
}

// TestAtOnce: of many at once one is carried out, the others are told to come
// again, and then get its answer.
func TestAtOnce(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	r := newRig(newMemory(), func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		close(begun)
		<-end
		fmt.Fprint(w, "the answer")
	})
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- r.send("POST", "/", "k", "b") }()
	<-begun
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if w := r.send("POST", "/", "k", "b"); w.Code != http.StatusConflict {
				t.Errorf("while the first is at work: %d", w.Code)
			}
		})
	}
	wg.Wait()
	close(end)
	if w := <-first; w.Body.String() != "the answer" {
		t.Errorf("first got %q", w.Body)
	}
	if w := r.send("POST", "/", "k", "b"); w.Body.String() != "the answer" {
		t.Errorf("later got %q", w.Body)
	}
	if calls.Load() != 1 {
		t.Errorf("carried out %d times", calls.Load())
	}
}

// TestAfterDeath: a process died after it had reserved the key, with and
// without having begun the operation.
func TestAfterDeath(t *testing.T) {
	for _, begun := range []bool{true, false} {
		t.Run(fmt.Sprint("begun ", begun), func(t *testing.T) {
			store := newMemory()
			var id string
			dying := newRig(store, func(_ http.ResponseWriter, req *http.Request) {
				id, _ = req.Context().Value(opKey{}).(string)
				panic(http.ErrAbortHandler) // as near to a death as a test gets
			})
			func() {
				defer func() { _ = recover() }()
				dying.send("POST", "/", "k", "b")
			}()
			next := newRig(store, nil)
			if begun {
				next.made.Store(id, true)
			}
			w := next.send("POST", "/", "k", "b")
			if w.Code != http.StatusAccepted || !strings.HasPrefix(w.Body.String(), id+" ") {
				t.Fatalf("%d %s, want operation %s", w.Code, w.Body, id)
			}
			want := int64(1)
			if begun {
				want = 0
			}
			if next.calls.Load() != want {
				t.Errorf("carried out %d times, want %d", next.calls.Load(), want)
			}
			if again := next.send("POST", "/", "k", "b"); again.Body.String() != w.Body.String() {
				t.Errorf("then %s, want %s", again.Body, w.Body)
			}
		})
	}
}

// TestFailuresOfOursAreNotKept, but those of the request are.
func TestFailuresOfOursAreNotKept(t *testing.T) {
	for status, kept := range map[int64]bool{200: true, 204: true, 400: true, 404: true, 409: true, 401: false, 403: false, 429: false, 500: false, 503: false} {
		r := newRig(newMemory(), nil)
		r.status.Store(status)
		if w := r.send("POST", "/", "k", ""); int64(w.Code) != status {
			t.Errorf("%d: %d", status, w.Code)
		}
		r.status.Store(201)
		w := r.send("POST", "/", "k", "")
		if got := int64(w.Code) == status; got != kept {
			t.Errorf("after %d: %d", status, w.Code)
		}
	}
}

func TestStoreThatFails(t *testing.T) {
	store := newMemory()
	r := newRig(store, nil)
	store.fail = errors.New("disk is full")
	if w := r.send("POST", "/", "k", ""); w.Code != 500 || r.calls.Load() != 0 {
		t.Errorf("%d, carried out %d times", w.Code, r.calls.Load())
	}
	// A removal is carried out: it may be what makes room.
	if w := r.send("DELETE", "/", "k", "which"); w.Code != http.StatusAccepted || !strings.HasSuffix(w.Body.String(), " which") {
		t.Errorf("a removal: %d %s", w.Code, w.Body)
	}
}

// TestAnswerIsKeptForWhoHasGone: the client, or the connection, ends while the
// request is carried out; its repetition gets the answer.
func TestAnswerIsKeptForWhoHasGone(t *testing.T) {
	store := newMemory()
	ctx, gone := context.WithCancel(t.Context())
	r := newRig(store, func(w http.ResponseWriter, _ *http.Request) {
		gone()
		fmt.Fprint(w, "done")
	})
	req := httptest.NewRequest(http.MethodPost, "/", nil).WithContext(ctx)
	req.Header.Set(once.Header, "k")
	r.handler.ServeHTTP(httptest.NewRecorder(), req)
	if w := newRig(store, nil).send("POST", "/", "k", ""); w.Body.String() != "done" || w.Header().Get(once.ReplayedHeader) != "true" {
		t.Errorf("its repetition got %q", w.Body)
	}
}

// TestHash: whatever changes what is asked for makes another request, and so
// does moving text from one part to the next.
func TestHash(t *testing.T) {
	hash := func(method, path, query, media, match, body string) string {
		req := httptest.NewRequest(method, "http://x"+path+"?"+query, nil)
		req.Header.Set("Content-Type", media)
		req.Header.Set("If-Match", match)
		req.Header.Set("Authorization", "Bearer "+rand.Text()) // which says nothing of it
		return once.Hash(req, []byte(body))
	}
	base := hash("POST", "/a", "q", "m", "e", "b")
	if again := hash("POST", "/a", "q", "m", "e", "b"); again != base {
		t.Error("the same request has two hashes")
	}
	seen := map[string]string{base: "the first"}
	for name, h := range map[string]string{
		"method": hash("DELETE", "/a", "q", "m", "e", "b"), "path": hash("POST", "/b", "q", "m", "e", "b"),
		"escapes": hash("POST", "/%61", "q", "m", "e", "b"), "query": hash("POST", "/a", "p", "m", "e", "b"),
		"media": hash("POST", "/a", "q", "n", "e", "b"), "If-Match": hash("POST", "/a", "q", "m", "f", "b"),
		"body": hash("POST", "/a", "q", "m", "e", "c"), "moved on": hash("POST", "/a", "q", "m", "", "eb"),
		"moved back": hash("POST", "/a", "q", "me", "", "b"), "moved far": hash("POST", "/aq", "", "m", "e", "b"),
	} {
		if was, ok := seen[h]; ok {
			t.Errorf("%s: taken for %s", name, was)
		}
		seen[h] = name
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"a", `"a"`, `"`, "", "\x00", `"a";p=1`, strings.Repeat("x", 200)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := once.ParseKey([]string{s})
		if err == nil && (key == "" || len(key) > 128 || strings.ContainsAny(key, "\" \r\n\x00")) {
			t.Errorf("%q gives %q", s, key)
		}
		if (err == nil) == (key == "") {
			t.Errorf("%q gives %q and %v", s, key, err)
		}
	})
}
