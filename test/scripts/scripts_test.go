// Package scripts runs every command of sandboxctl against one real sandboxd
// whose machines are processes of this host, and compares what is printed.
//
// A script is a file of testdata/script (testscript). Beside the commands of
// testscript it has:
//
//	exits STATUS COMMAND…     the command must end with this status
//	golden FILE               what the last command printed, with ids, times and
//	                          the like replaced, must be FILE
//	capture VAR REGEXP        $VAR becomes the first group of REGEXP, or the whole
//	                          match, in what the last command printed
//	eventually STATUS REGEXP COMMAND…
//	                          the command is repeated until it ends so and prints that
//
// UPDATE_SCRIPTS=1 go test ./test/scripts writes what golden compares.
package scripts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// TestMain makes sandboxctl a command of scripts: the real one takes the place
// of this process.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sandboxctl": func() {
		ctl := os.Getenv("CTL")
		fmt.Fprintln(os.Stderr, "cannot run", ctl, syscall.Exec(ctl, append([]string{"sandboxctl"}, os.Args[1:]...), os.Environ()))
		os.Exit(127)
	}})
}

func TestScripts(t *testing.T) {
	d := daemon(t)
	bin, _, err := rig.Built()
	check(t, err)
	orphan := orphaned(t, d)
	token, err := d.Token()
	check(t, err)
	t.Run("all", func(t *testing.T) { // ends when every script has
		testscript.Run(t, testscript.Params{
			Dir: "testdata/script", RequireUniqueNames: true,
			Setup: func(env *testscript.Env) error {
				name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
				dir, err := machineFiles(env.WorkDir)
				if err != nil {
					return err
				}
				t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
				env.Vars = append(env.Vars,
					"CTL="+filepath.Join(bin, "sandboxctl"),
					"HOME="+env.WorkDir, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=", "TZ=UTC",
					"SANDBOX_SERVER=", "SANDBOX_TOKEN=", "SANDBOX_CONTEXT=", "SANDBOX_CONFIG=", "SANDBOX_STATE_DIR="+d.StateDir,
					"STATE="+d.StateDir, "URL="+d.URL, "TOKEN="+token, "ORPHAN="+orphan,
					"SCRIPT="+name, "REQUEST="+rig.AdapterDir+"/request.json", "FILES="+dir)
				env.Values[normalKey{}] = newNormal(env.WorkDir, dir, d.StateDir, d.URL)
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"exits": exits, "golden": golden, "capture": capture, "eventually": eventually,
			},
		})
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// daemon is the one that all scripts share.
func daemon(t *testing.T) *rig.Daemon {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	d, err := rig.Start(ctx, rig.Options{Args: []string{
		"--enable-host-provider", "--accelerator", "tcg", "--accept-empty-database",
	}})
	if errors.Is(err, rig.ErrNotBuilt) {
		t.Skip(err)
	}
	check(t, err)
	t.Cleanup(func() { check(t, errors.Join(d.Stop(), d.Remove())) })
	return d
}

// orphaned leaves the daemon a machine that runs and that no instance knows:
// the database that did is lost.
func orphaned(t *testing.T, d *rig.Daemon) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	loadout := filepath.Join(t.TempDir(), "orphan.yaml")
	check(t, os.WriteFile(loadout, []byte("apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: orphan}\n"+
		"runtime_options: {kind: host}\nimage: minimal\nrunners: [echo]\nworkspace: {path: "+orphanWorkspace+"}\n"), 0o600))
	out, err := d.Must(ctx, "up", loadout, "--name", "orphan", "-o", "json")
	check(t, err)
	var i struct {
		ID string `json:"id"`
	}
	check(t, json.Unmarshal([]byte(out), &i))
	t.Cleanup(func() { check(t, os.RemoveAll(orphanWorkspace)) })
	check(t, d.Kill())
	lost, err := filepath.Glob(filepath.Join(d.StateDir, "sandbox.db*"))
	check(t, err)
	for _, path := range lost {
		check(t, os.Remove(path))
	}
	check(t, d.Launch(ctx))
	return i.ID
}

const orphanWorkspace = "/var/tmp/sandbox-scripts-orphan"

// machineFiles writes hosted.yaml, whose machines are processes of this host
// with an adapter that does what its request says. Their files are in dir.
func machineFiles(work string) (dir string, err error) {
	files := map[string]string{rig.AdapterDir + "/runner.mjs": adapter}
	for _, do := range []string{"ok", "fail", "hold", "ask", "open"} {
		files[rig.AdapterDir+"/"+do+".json"] = `{"do":"` + do + `"}` + "\n"
	}
	h, err := rig.NewHosted("hosted", rig.ShellNode, files)
	if err != nil {
		return "", err
	}
	loadout, err := os.ReadFile(h.Loadout)
	if err == nil {
		err = os.WriteFile(filepath.Join(work, "hosted.yaml"), loadout, 0o600)
	}
	return h.Dir, err
}

// adapter is run as: node runner.mjs --request FILE.
const adapter = `
case $(cat "$2") in
*ok*) echo plan; echo note >&2 ;;
*fail*) echo plan; echo broken >&2; exit 3 ;;
*hold*) echo holding; exec sleep 600 ;;
*ask*) printf 'Continue? [y/N] '; read -r a; echo "answer $a" ;;
*open*) printf 'no end of line' ;;
esac
`

// exits runs a command and wants a certain exit status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND…")
	}
	if got := run(ts, args[1:]); strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit status is %d, want %s", got, args[0])
	}
}

// run runs a command and returns its status.
func run(ts *testscript.TestScript, args []string) int {
	var exit *exec.ExitError
	err := ts.Exec(args[0], args[1:]...)
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	return 0
}
