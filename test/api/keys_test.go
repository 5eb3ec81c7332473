package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// rounds is how often the daemon is killed while it makes an instance.
const rounds = 6

// TestKeysOutliveTheDaemon kills the daemon while several clients ask for one
// instance with one key, again and again until they are answered. Whatever the
// moment, there is one operation and one instance in the end.
func TestKeysOutliveTheDaemon(t *testing.T) {
	d, token := start(t)
	for round := range rounds {
		name := fmt.Sprintf("k-%d", round)
		body, err := json.Marshal(managementv1.CreateInstance{
			Name: name, Loadout: managementv1.LoadoutSource{Name: "host.yaml", Content: loadout},
		})
		if err != nil {
			t.Fatal(err)
		}
		ops := make([]string, 4)
		var clients sync.WaitGroup
		for i := range ops {
			clients.Go(func() { ops[i] = insist(t, d.URL, token, "key-"+name, string(body)) })
		}
		moment := time.NewTimer(time.Duration(rand.IntN(40)) * time.Millisecond)
		<-moment.C
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := d.Launch(t.Context()); err != nil {
			t.Fatal(err)
		}
		clients.Wait()
		for _, op := range ops {
			if op == "" || op != ops[0] {
				t.Fatalf("round %d: operations are %v, want one", round, ops)
			}
		}
		// A create that was interrupted goes on, or fails and leaves nothing.
		status, answer := get(t, d.URL+managementv1.BasePath+"/operations/"+ops[0]+"?wait=2m", token)
		var op managementv1.Operation
		if err := json.Unmarshal([]byte(answer), &op); err != nil || status != http.StatusOK || op.EndedAt.IsZero() {
			t.Fatalf("round %d: status %d, %v: %s", round, status, err, answer)
		}
		_, answer = get(t, d.URL+managementv1.BasePath+"/operations?limit=1000&kind=instance.create", token)
		if n := strings.Count(answer, `"instance_name":"`+name+`"`); n != 1 {
			t.Fatalf("round %d: %d operations make %s", round, n, name)
		}
	}
	if out, err := d.Must(t.Context(), "ls", "-o", "name"); err != nil || strings.Count(out, "\n") > rounds {
		t.Errorf("%v:\n%s", err, out)
	}
}

// insist repeats a request until it has been taken, as a client does whose
// connection breaks, and returns the operation.
func insist(t *testing.T, url, token, key, body string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+managementv1.BasePath+"/instances", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return ""
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", `"`+key+`"`)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			answer, rerr := io.ReadAll(res.Body)
			res.Body.Close()
			var op managementv1.Operation
			switch {
			case rerr != nil: // the daemon died in between
			case res.StatusCode == http.StatusAccepted:
				if err := json.Unmarshal(answer, &op); err != nil {
					t.Error(err)
				}
				if want := managementv1.BasePath + "/operations/" + op.Id; res.Header.Get("Location") != want {
					t.Errorf("Location is %q, want %q", res.Header.Get("Location"), want)
				}
				return op.Id
			case res.StatusCode != http.StatusConflict && res.StatusCode < 500:
				t.Errorf("status %d: %s", res.StatusCode, answer)
				return ""
			}
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	t.Error("no answer")
	return ""
}
