package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// TestEcho sends a text to the smallest machine and gets it back by a real
// process in it.
func TestEcho(t *testing.T) {
	d := daemon(t)
	ctx := deadline(t)
	boot(t, d, "echo", "minimal")
	const text = `it's "quoted" $(echo not) a shell; ümlaut`
	out, err := d.Must(ctx, "send", "echo", text, "-o", "json")
	check(t, err)
	k := parseTask(t, out)
	if k.Status.State != "TASK_STATE_COMPLETED" {
		t.Errorf("state is %s, want completed\n%s", k.Status.State, out)
	}
	if !strings.Contains(out, "ümlaut") || !strings.Contains(out, "$(echo not)") {
		t.Errorf("the text did not come back:\n%s", out)
	}
	// The same task is there afterwards, with the runtime it came from.
	out, err = d.Must(ctx, "task", "show", "echo", k.ID, "-o", "json")
	check(t, err)
	again := parseTask(t, out)
	if again.ID != k.ID || again.Metadata["runtime.kind"] != "vm" || again.Metadata["runtime.provider"] != "libvirt" {
		t.Errorf("task show gives %+v", again)
	}
}

// TestSeveralMachinesAtOnce boots machines in parallel and talks to each.
func TestSeveralMachinesAtOnce(t *testing.T) {
	d := daemon(t)
	ctx := deadline(t)
	names := []string{"par-a", "par-b", "par-c"}
	t.Cleanup(func() {
		for _, n := range names {
			if _, err := d.Must(t.Context(), "rm", n); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		}
	})
	var g errgroup.Group
	for _, name := range names {
		g.Go(func() error {
			if _, err := d.Must(ctx, "up", "minimal", "--name", name); err != nil {
				return err
			}
			out, err := d.Must(ctx, "send", name, "I am "+name, "-o", "json")
			if err != nil {
				return err
			}
			if !strings.Contains(out, "I am "+name) {
				return fmt.Errorf("%s answered %s", name, out)
			}
			return nil
		})
	}
	check(t, g.Wait())
	out, err := d.Must(ctx, "ls", "-o", "json")
	check(t, err)
	for _, n := range names {
		if !strings.Contains(out, `"`+n+`"`) {
			t.Errorf("ls lacks %s:\n%s", n, out)
		}
	}
	for _, n := range names {
		_, err := d.Must(ctx, "rm", n)
		check(t, err)
	}
	names = nil
}

const bigRunner = `
import { createHash } from 'node:crypto';
const line = Buffer.from('0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+\n'.repeat(1024));
const hash = createHash('sha256');
const write = (b) => new Promise((ok) => process.stdout.write(b, ok));
for (let i = 0; i < 1024; i++) {
  hash.update(line);
  await write(line);
}
console.error(hash.digest('hex'));
process.exitCode = 7;
`

// TestBigOutput runs the bounded command of the seed with 64 MiB of output and
// status 7: every byte arrives, the status is told, and the task has failed by
// the application's fault.
func TestBigOutput(t *testing.T) {
	d := daemon(t)
	ctx := deadline(t)
	boot(t, d, "big", "agentic-dev", "--workspace", workspace(t, bigRunner))
	before, err := d.Peak()
	check(t, err)
	hash := sha256.New()
	var counted counter
	var stderr bytes.Buffer
	code, err := d.CtlTo(ctx, io.MultiWriter(hash, &counted), &stderr, "run", "big", "--mode", "plan", "--request", request)
	check(t, err)
	if code != 3 {
		t.Errorf("status is %d, want 3 (failed, application)\n%s", code, stderr.String())
	}
	if counted != 64<<20 {
		t.Errorf("got %d bytes, want %d", counted, 64<<20)
	}
	// The daemon stores and streams it all in a fraction of its size.
	after, err := d.Peak()
	check(t, err)
	if grown := after - before; grown > 48<<20 {
		t.Errorf("the daemon's memory grew by %d MiB for 64 MiB of output", grown>>20)
	}
	if sum := hex.EncodeToString(hash.Sum(nil)); !strings.Contains(stderr.String(), sum) {
		t.Errorf("checksum %s is not what the guest computed:\n%s", sum, stderr.String())
	}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

const stubbornRunner = `
import { spawn } from 'node:child_process';
process.on('SIGTERM', () => console.log('no'));
for (let i = 0; i < 3; i++) {
  spawn('sh', ['-c', 'trap "" TERM; setsid sh -c "trap \"\" TERM; sleep 9876" & sleep 9876'], { detached: true, stdio: 'ignore' });
}
console.log('ready');
setInterval(() => {}, 1000);
`

const countingRunner = `
import { readdirSync, readFileSync } from 'node:fs';
let n = 0;
for (const pid of readdirSync('/proc')) {
  if (!/^\d+$/.test(pid)) continue;
  try {
    if (readFileSync('/proc/' + pid + '/cmdline', 'utf8').includes('9876')) n++;
  } catch {}
}
console.log('stubborn processes: ' + n);
`

// TestTimeoutEndsTheWholeTree gives a command a second too little: it ignores
// SIGTERM, and so do its children in sessions of their own.
func TestTimeoutEndsTheWholeTree(t *testing.T) {
	d := daemon(t)
	ctx := deadline(t)
	boot(t, d, "stubborn", "agentic-dev", "--workspace", workspace(t, stubbornRunner))
	r, err := d.Ctl(ctx, "run", "stubborn", "--mode", "assess", "--request", request, "--timeout", "20", "-o", "json")
	check(t, err)
	k := parseTask(t, r.Stdout)
	if r.Code != 3 || k.Status.State != "TASK_STATE_FAILED" {
		t.Errorf("status %d, state %s; want 3, failed\n%s", r.Code, k.Status.State, r.Stdout+r.Stderr)
	}
	// Another workspace's runner counts what is left.
	putRunner(t, d, "stubborn", countingRunner)
	r, err = d.Ctl(ctx, "run", "stubborn", "--mode", "assess", "--request", request)
	check(t, err)
	if !strings.Contains(r.Stdout, "stubborn processes: 0") {
		t.Errorf("after the timeout: %s%s", r.Stdout, r.Stderr)
	}
}

// TestCard checks the published card of a machine, as any client would get it.
func TestCard(t *testing.T) {
	d := daemon(t)
	ctx := deadline(t)
	boot(t, d, "card", "minimal")
	out, err := d.Must(ctx, "show", "card", "-o", "json")
	check(t, err)
	var shown struct {
		ID       string `json:"id"`
		ImageRef string `json:"image_ref"`
		CardURL  string `json:"agent_card_url"`
	}
	check(t, json.Unmarshal([]byte(out), &shown))
	token, err := d.Token()
	check(t, err)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, shown.CardURL, http.NoBody)
	check(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	check(t, err)
	defer resp.Body.Close()
	var card struct {
		Skills       []any
		Capabilities struct {
			Extensions []struct {
				URI      string
				Required bool
				Params   struct {
					InstanceID string `json:"instance_id"`
					ImageRef   string `json:"image_ref"`
					Runtime    string
				}
			}
		}
	}
	check(t, json.NewDecoder(resp.Body).Decode(&card))
	n := 0
	for _, e := range card.Capabilities.Extensions {
		if !strings.HasSuffix(e.URI, "/extensions/runtime/v1") {
			continue
		}
		n++
		if !e.Required || e.Params.InstanceID != shown.ID || e.Params.ImageRef != shown.ImageRef || e.Params.Runtime != "vm" {
			t.Errorf("runtime/v1 says %+v, show says %+v", e, shown)
		}
	}
	if n != 1 || len(card.Skills) == 0 || !strings.HasPrefix(shown.ImageRef, "qcow2://images/minimal@sha256:") {
		t.Errorf("card is %+v for %+v", card, shown)
	}
}
