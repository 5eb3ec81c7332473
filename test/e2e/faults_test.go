package e2e

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// wants fails the test unless text holds every part: a message has to say what
// is wrong and what to do.
func wants(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("the message lacks %q:\n%s", p, text)
		}
	}
}

func TestUnknownInstance(t *testing.T) {
	r, err := daemon(t).Ctl(deadline(t), "show", "nobody")
	check(t, err)
	if r.Code == 0 {
		t.Error("status is 0")
	}
	wants(t, r.Stderr, "nobody", "sandboxctl ls")
}

func TestBrokenLoadout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken.yaml")
	const text = "apiVersion: loadout/v1\nkind: loadout\nmetadata:\n  name: broken\nimage: minimal\nresources:\n  memory: lots\nrunnner: [echo]\n"
	check(t, os.WriteFile(file, []byte(text), 0o600))
	r, err := daemon(t).Ctl(deadline(t), "up", file)
	check(t, err)
	if r.Code == 0 {
		t.Error("status is 0")
	}
	wants(t, r.Stderr, "broken.yaml:7:11", "resources.memory", "broken.yaml:8:1", "runners")
}

func TestNameTaken(t *testing.T) {
	d := daemon(t)
	boot(t, d, "taken", "minimal")
	r, err := d.Ctl(deadline(t), "up", "minimal", "--name", "taken")
	check(t, err)
	if r.Code == 0 {
		t.Error("status is 0")
	}
	wants(t, r.Stderr, "taken", "choose another name", "sandboxctl rm taken")
}

func TestNoToken(t *testing.T) {
	d := daemon(t)
	for _, path := range []string{"/api/v1/instances", "/agents/018fc0a2-7777-7aaa-bbbb-ccccddddeeee/.well-known/agent-card.json"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL+path, http.NoBody)
		check(t, err)
		resp, err := http.DefaultClient.Do(req)
		check(t, err)
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		check(t, err)
		check(t, resp.Body.Close())
		if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("GET %s: %s", path, resp.Status)
		}
		wants(t, string(body), "token")
	}
}

// sandboxd runs the daemon until it fails, and returns what it says.
func sandboxd(t *testing.T, args ...string) string {
	t.Helper()
	daemon(t) // skips when nothing is built
	bin := os.Getenv(rig.BinEnv)
	if bin == "" {
		bin = filepath.Join("..", "..", ".build", "bin")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "sandboxd"), append([]string{"serve"}, args...)...).CombinedOutput()
	if err == nil {
		t.Error("sandboxd ended well, want a failure")
	}
	return string(out)
}

func TestPortInUse(t *testing.T) {
	address := strings.TrimPrefix(daemon(t).URL, "http://")
	dir := t.TempDir()
	out := sandboxd(t, "--state-dir", dir, "--listen", address)
	wants(t, out, address, "address already in use", "--listen")
}

func TestStateDirInUse(t *testing.T) {
	d := daemon(t)
	out := sandboxd(t, "--state-dir", d.StateDir, "--listen", "127.0.0.1:0")
	wants(t, out, d.StateDir, "another sandboxd", "pid "+itoa(d.Pid()), "--state-dir")
}

func TestStateDirNotWritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a-file")
	check(t, os.WriteFile(file, nil, 0o600))
	out := sandboxd(t, "--state-dir", filepath.Join(file, "state"), "--listen", "127.0.0.1:0")
	wants(t, out, "cannot write state directory", "a-file")
}

// TestMissingHypervisor runs a daemon that cannot find QEMU: it starts, says
// so, and names the command that mends it.
func TestMissingHypervisor(t *testing.T) {
	d := own(t, rig.Options{Env: []string{"PATH=" + t.TempDir()}})
	ctx := deadline(t)
	for _, args := range [][]string{{"up", "minimal", "--name", "never"}, {"doctor"}} {
		r, err := d.Ctl(ctx, args...)
		check(t, err)
		if r.Code == 0 {
			t.Errorf("%v: status is 0", args)
		}
		wants(t, r.Stdout+r.Stderr, "qemu-system-x86_64", "apt-get install")
	}
}

// TestWrongDigest damages one byte of a base image: it is refused before any
// machine sees it, by its digest, with what to do.
func TestWrongDigest(t *testing.T) {
	d := own(t, rig.Options{})
	ctx := deadline(t)
	check(t, d.Stop())
	damaged := copyImages(t, d)
	check(t, filepath.WalkDir(damaged, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !strings.Contains(path, "blobs") {
			return err
		}
		return flip(path)
	}))
	broken := own(t, rig.Options{Args: []string{"--image-dir", damaged}})
	r, err := broken.Ctl(ctx, "up", "minimal", "--name", "never")
	check(t, err)
	if r.Code == 0 {
		t.Error("status is 0")
	}
	wants(t, r.Stderr, "sha256:", "make images")
	out, err := broken.Must(ctx, "ls", "-o", "name")
	check(t, err)
	if strings.TrimSpace(out) != "" {
		t.Errorf("the failed instance is still listed: %q", out)
	}
}

// copyImages copies the image store to a place where it may be damaged.
func copyImages(t *testing.T, d *rig.Daemon) string {
	t.Helper()
	from := os.Getenv(rig.ImagesEnv)
	if from == "" {
		from = filepath.Join("..", "..", ".build", "images")
	}
	to := filepath.Join(d.StateDir, "damaged")
	check(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

// flip changes one byte in the middle of a file and keeps its times, as decay
// of a disk would.
func flip(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	at := info.Size() / 2
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b, at); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Chtimes(path, info.ModTime(), info.ModTime())
}
