package management_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
)

func openEvents(ctx context.Context, t *testing.T, base string) (*http.Response, *bufio.Reader) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+managementv1.BasePath+"/operations/"+operationID+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res, bufio.NewReader(res.Body)
}

// nextOperation reads one event, which must be out as soon as it happened.
func nextOperation(t *testing.T, r *bufio.Reader) (managementv1.Operation, error) {
	t.Helper()
	var op managementv1.Operation
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return op, err
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &op); err != nil {
				t.Fatal(err)
			}
			return op, nil
		}
	}
}

func TestWatchSendsEachChangeAtOnceAndEnds(t *testing.T) {
	changes := make(chan fleet.Operation)
	s := serve(t, &fakeFleet{WatchFn: func(context.Context, string) (<-chan fleet.Operation, error) { return changes, nil }})
	op := sampleOperation()
	go func() { changes <- op }()
	res, events := openEvents(t.Context(), t, s.URL)
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("content type is %q", got)
	}
	// Each change is sent only after the one before has arrived.
	for _, percent := range []int{60, 70, 100} {
		got, err := nextOperation(t, events)
		if err != nil || got.Percent != percent {
			t.Fatalf("got %+v, %v, want %d %%", got, err, percent)
		}
		switch percent {
		case 60:
			op.Percent = 70
			changes <- op
		case 70:
			op.Percent, op.State, op.EndedAt = 100, fleet.OperationFailed, sampleTime()
			op.Fault = &instance.Fault{Blame: instance.Guest, Code: "guest.silent", Err: io.ErrUnexpectedEOF}
			changes <- op
			close(changes)
		case 100:
			if got.State != managementv1.OperationFailed || got.Fault.Code != "guest.silent" {
				t.Fatalf("last event is %+v", got)
			}
		}
	}
	if _, err := nextOperation(t, events); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last event: %v, want the end", err)
	}
}

func TestWatchShowsThatItLives(t *testing.T) {
	c := config(&fakeFleet{WatchFn: func(context.Context, string) (<-chan fleet.Operation, error) {
		return make(chan fleet.Operation), nil
	}}, nil)
	c.Heartbeat = time.Millisecond
	s := httptest.NewServer(admin(management.New(c)))
	defer s.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, events := openEvents(ctx, t, s.URL)
	for range 3 {
		line, err := events.ReadString('\n')
		if err != nil || (line != ": still here\n" && line != "\n") {
			t.Fatalf("got %q, %v", line, err)
		}
	}
}

func TestWatchEndsWithItsClient(t *testing.T) {
	ended := make(chan struct{})
	s := serve(t, &fakeFleet{WatchFn: func(ctx context.Context, _ string) (<-chan fleet.Operation, error) {
		ch := make(chan fleet.Operation, 1)
		ch <- sampleOperation()
		context.AfterFunc(ctx, func() { close(ended) })
		return ch, nil
	}})
	ctx, leave := context.WithCancel(t.Context())
	_, events := openEvents(ctx, t, s.URL)
	if _, err := nextOperation(t, events); err != nil {
		t.Fatal(err)
	}
	leave()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the watch goes on without its client")
	}
}

func TestWatchOfUnknownOperationIsNoStream(t *testing.T) {
	s := serve(t, &fakeFleet{WatchFn: func(context.Context, string) (<-chan fleet.Operation, error) {
		return nil, &instance.Fault{Blame: instance.Caller, Code: "operation.not_found", Err: io.EOF}
	}})
	res, _ := openEvents(t.Context(), t, s.URL)
	if res.StatusCode != http.StatusNotFound {
		t.Fatalf("status %d, want 404", res.StatusCode)
	}
}

// TestUploadStreams wants the guest to have the first bytes while the client
// still holds the last.
func TestUploadStreams(t *testing.T) {
	arrived := make(chan string)
	s := serve(t, &fakeFleet{PutArchiveFn: func(_ context.Context, ref, path string, tar io.Reader) (int, int64, error) {
		first := make([]byte, 5)
		if _, err := io.ReadFull(tar, first); err != nil {
			return 0, 0, err
		}
		arrived <- ref + " " + path + " " + string(first)
		n, err := io.Copy(io.Discard, tar)
		return 3, n + 5, err
	}})
	reader, writer := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		if _, err := io.WriteString(writer, "first"); err != nil {
			sent <- err
			return
		}
		select {
		case got := <-arrived:
			if got != sampleID+" /workspace first" {
				t.Errorf("guest got %q", got)
			}
		case <-time.After(time.Minute):
			t.Error("nothing arrives before everything is sent")
		}
		_, err := io.WriteString(writer, "last")
		sent <- err
		writer.Close()
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
		s.URL+managementv1.BasePath+"/instances/demo/files?path=/workspace", reader)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-tar")
	res, body := roundTrip(t, req)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || string(body) != `{"bytes":9,"entries":3}`+"\n" {
		t.Errorf("status %d: %s", res.StatusCode, body)
	}
}

// TestUploadThatStalls wants a client that sends nothing more to be let go.
func TestUploadThatStalls(t *testing.T) {
	c := config(&fakeFleet{}, nil)
	c.Stall = 50 * time.Millisecond
	s := httptest.NewServer(admin(management.New(c)))
	defer s.Close()
	reader, writer := io.Pipe()
	defer writer.Close()
	go io.WriteString(writer, "and then nothing")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
		s.URL+managementv1.BasePath+"/instances/demo/files?path=/workspace", reader)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-tar")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return // the server has closed the connection, which is as good
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d, want 400", res.StatusCode)
	}
}

func TestLogsAsText(t *testing.T) {
	s := serve(t, &fakeFleet{})
	get := func(accept string) (string, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+managementv1.BasePath+"/instances/demo/logs", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		res, body := roundTrip(t, req)
		return res.Header.Get("Content-Type"), string(body)
	}
	for accept, want := range map[string]string{
		"": "application/json", "*/*": "application/json", "application/json": "application/json",
		"text/plain": "text/plain; charset=utf-8", "text/plain;q=0.5, application/json;q=0.4": "text/plain; charset=utf-8",
		"text/plain;q=0.1, application/json": "application/json", "text/*": "text/plain; charset=utf-8", "garbage;;;": "application/json",
	} {
		if got, _ := get(accept); got != want {
			t.Errorf("Accept %q gives %q, want %q", accept, got, want)
		}
	}
	_, text := get("text/plain")
	want := "state: running\naccelerator: tcg\npid: 42\n\n--- hypervisor ---\nqemu says nothing\n\n--- console ---\nLinux boots\nlogin:\n"
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}
