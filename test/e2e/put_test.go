package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http"
	"net/url"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// putRunner replaces runner.mjs in the workspace of a running machine, by the
// management API.
func putRunner(t *testing.T, d *rig.Daemon, name, script string) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	check(t, w.WriteHeader(&tar.Header{Name: rig.AdapterDir + "/runner.mjs", Mode: 0o644, Size: int64(len(script))}))
	_, err := io.WriteString(w, script)
	check(t, err)
	check(t, w.Close())
	token, err := d.Token()
	check(t, err)
	target := d.URL + "/api/v1/instances/" + name + "/files?path=" + url.QueryEscape("/workspace")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, target, &archive)
	check(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/x-tar")
	resp, err := http.DefaultClient.Do(req)
	check(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	check(t, err)
	if resp.StatusCode/100 != 2 {
		t.Fatalf("PUT files: %s\n%s", resp.Status, body)
	}
}
