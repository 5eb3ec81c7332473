package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

const (
	extRuntime = "https://agentic-sandbox.aiwg.io/extensions/runtime/v1"
	extAdapter = "https://agentic-sandbox.aiwg.io/extensions/adapter-command/v1"
)

// hosted is a sandboxd with one machine that is a process of this host, so that
// what is measured is the daemon and the agent, and no emulated processor.
type hosted struct {
	daemon *rig.Daemon
	dir    string // of the machine's workspace
	agent  target
}

// target is an agent's address on HTTP+JSON of A2A 1.0.
type target struct {
	url    string
	header http.Header
	client *http.Client
}

func newTarget(url string) target {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	return target{url: url, client: &http.Client{Transport: transport}, header: http.Header{
		"A2a-Version": {"1.0"}, "Content-Type": {"application/json"},
	}}
}

// startHosted starts one whose adapter command is the guest program, with the
// message's text as its arguments. Close it.
func (b *bench) startHosted(ctx context.Context) (h *hosted, err error) {
	files, err := rig.NewHosted("bench", "#!/bin/sh\nexec '"+filepath.Join(b.dir, "guest")+"' $AIWG_A2A_MESSAGE\n",
		map[string]string{rig.AdapterDir + "/runner.mjs": ""})
	if err != nil {
		return nil, err
	}
	h = &hosted{dir: files.Dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close(ctx))
		}
	}()
	h.daemon, err = rig.Start(ctx, rig.Options{Args: []string{
		"--enable-host-provider", "--log-level", "warn", "--a2a-blocking-wait", sampleLimit.String(),
		"--max-task-output", strconv.FormatUint(2*b.artifactSize(), 10),
	}})
	if err != nil {
		return h, err
	}
	return h, h.up(ctx, files.Loadout)
}

// up makes the machine and finds its address.
func (h *hosted) up(ctx context.Context, loadout string) error {
	if _, err := h.daemon.Must(ctx, "up", loadout, "--name", "bench"); err != nil {
		return err
	}
	out, err := h.daemon.Must(ctx, "show", "bench", "-o", "json")
	if err != nil {
		return err
	}
	var shown struct {
		URL string `json:"a2a_url"`
	}
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		return fmt.Errorf("cannot read what sandboxctl shows: %w", err)
	}
	token, err := h.daemon.Token()
	if err != nil {
		return err
	}
	h.agent = newTarget(shown.URL)
	h.agent.header.Set("Authorization", "Bearer "+token)
	h.agent.header.Set("A2A-Extensions", extRuntime+", "+extAdapter)
	return nil
}

// close removes the machine and ends the daemon, also when ctx has ended.
func (h *hosted) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	var err error
	if h.daemon != nil {
		_, err = h.daemon.Must(ctx, "rm", "bench")
		err = errors.Join(err, h.daemon.Stop(), h.daemon.Remove())
	}
	return errors.Join(err, os.RemoveAll(h.dir))
}

// daemon measures what is asked of a whole sandboxd.
func (b *bench) daemon(ctx context.Context, keep func(Section, error) error) error {
	h, err := b.startHosted(ctx)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context, *hosted) (Section, error)
	}{{sectionSend, b.sends}, {sectionTick, b.events}, {sectionFill, b.fills}} {
		if err == nil && slices.Contains(b.only, part.name) {
			err = keep(part.measure(ctx, h))
		}
	}
	return errors.Join(err, h.close(ctx))
}

// post sends a message and returns the answer, which the caller closes.
func (t target) post(ctx context.Context, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = t.header
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	return nil, errors.Join(fmt.Errorf("%s answers %s: %q", path, resp.Status, text), err, resp.Body.Close())
}

// answered is what the benchmark reads of an answer.
type answered struct {
	Task struct {
		ID        string `json:"id"`
		Status    struct{ State string }
		Artifacts []struct {
			Parts []struct{ Text string }
		}
	}
}

// send sends a message and wants its task to be completed.
func (t target) send(ctx context.Context, body []byte) (a answered, err error) {
	resp, err := t.post(ctx, "/message:send", body)
	if err != nil {
		return a, err
	}
	raw, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return a, err
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, fmt.Errorf("cannot read the answer: %w", err)
	}
	if a.Task.Status.State != "TASK_STATE_COMPLETED" {
		return a, fmt.Errorf("the task is not completed: %.500q", raw)
	}
	return a, nil
}

// adapterMessage has the machine run the guest program with arguments.
func adapterMessage(arguments string) []byte {
	text, err := json.Marshal(arguments)
	if err != nil {
		text = []byte(`""`) // not possible for a string
	}
	return fmt.Appendf(nil, `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":%s}],"metadata":{"%s":{`+
		`"adapter":"sandbox-agent-runner","mode":"plan","timeout_seconds":%d,`+
		`"command":["node","%s/runner.mjs","--request","%s/request.json"]}}}}`,
		text, extAdapter, int(sampleLimit/time.Second), rig.AdapterDir, rig.AdapterDir)
}
