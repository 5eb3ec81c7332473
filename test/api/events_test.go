package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// follower reads the stream of events as a client does that must miss nothing:
// it goes on behind the last event whenever the stream breaks.
type follower struct {
	t          *testing.T
	url, token string
	events     []managementv1.Event
}

// until reads events until one fulfils what is wanted.
func (f *follower) until(wanted func(managementv1.Event) bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if f.stream(ctx, wanted) {
			return
		}
		pause := time.NewTimer(50 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	f.t.Fatalf("the event does not come; the last of %d is %+v", len(f.events), f.events[max(0, len(f.events)-1):])
}

// stream reads one stream to its end, or to the event that is wanted.
func (f *follower) stream(ctx context.Context, wanted func(managementv1.Event) bool) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+managementv1.BasePath+"/events/stream?after=0", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	if n := len(f.events); n > 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(f.events[n-1].Seq, 10))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false // the daemon is away
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		f.t.Fatalf("status %d", res.StatusCode)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e managementv1.Event
		if json.Unmarshal([]byte(data), &e) != nil {
			return false // cut off in the middle
		}
		f.events = append(f.events, e)
		if wanted(e) {
			return true
		}
	}
	return false
}

// TestNoEventIsMissed follows an instance through its life while the daemon is
// killed and stopped in between.
func TestNoEventIsMissed(t *testing.T) {
	d, token := start(t)
	ctl := func(args ...string) {
		t.Helper()
		if _, err := d.Must(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	phase := func(want managementv1.InstanceState) func(managementv1.Event) bool {
		return func(e managementv1.Event) bool { return e.Type == "instance.phase" && e.State == want }
	}
	f := &follower{t: t, url: d.URL, token: token}
	file := filepath.Join(t.TempDir(), "host.yaml")
	write(t, file, []byte(loadout))

	ctl("up", file, "--name", "dev")
	f.until(phase(managementv1.InstanceRunning))
	for _, end := range []func() error{d.Kill, d.Stop} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := d.Launch(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctl("stop", "dev")
		f.until(phase(managementv1.InstanceStopped))
		ctl("start", "dev")
		f.until(phase(managementv1.InstanceRunning))
	}
	ctl("rm", "dev")
	f.until(func(e managementv1.Event) bool { return e.Type == "instance.deleted" })
	for i, e := range f.events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has number %d: %+v", i+1, e.Seq, e)
		}
	}
	if f.events[0].Type != "instance.created" && f.events[0].Type != "operation.created" {
		t.Errorf("it begins with %+v", f.events[0])
	}
}
