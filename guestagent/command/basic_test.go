package command_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command/cgrouptest"
)

func TestStreamsAreApartAndCodeIsTrue(t *testing.T) {
	t.Parallel()
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		out, errOut, e := result(t, table, sh(`echo out; echo err >&2; exit 7`))
		if out != "out\n" || errOut != "err\n" {
			t.Errorf("stdout %q, stderr %q", out, errOut)
		}
		if e.GetCause() != agentv1.Exited_CAUSE_EXITED || e.GetCode() != 7 || e.GetStdoutBytes() != 4 || e.GetStderrBytes() != 4 {
			t.Errorf("exited: %v", e)
		}
	})
}

func TestArgumentsArriveAsGiven(t *testing.T) {
	t.Parallel()
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		args := []string{"a b", "", `"quoted"`, "it's", "$HOME `x` \\", "new\nline", "ü <&>", "--", "*"}
		s := sh(`for a in "$@"; do printf '%s\0' "$a"; done`)
		s.Argv = append(s.Argv, "sh")
		s.Argv = append(s.Argv, args...)
		out, _, _ := result(t, table, s)
		if diff := cmp.Diff(strings.Join(args, "\x00")+"\x00", out); diff != "" {
			t.Error(diff)
		}
	})
}

func TestEnvironmentIsExactlyWhatIsGiven(t *testing.T) {
	t.Setenv("LEAK", "secret")
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		s := spec("env")
		s.Env = map[string]string{"A": "1", "EMPTY": "", "HOME": "/elsewhere"}
		out, _, _ := result(t, table, s)
		want := "A=1\nEMPTY=\nHOME=/elsewhere\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nUSER="
		if !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 5 {
			t.Errorf("environment: %q", out)
		}
	})
}

func TestRefusalsToStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	noInterpreter := filepath.Join(dir, "nointerp")
	for _, err := range []error{
		os.WriteFile(plain, []byte("data"), 0o600),
		os.WriteFile(noInterpreter, []byte("#!/no/such/interpreter\n"), 0o700),
		os.Mkdir(filepath.Join(dir, "root"), 0o755),
		os.Symlink("/etc", filepath.Join(dir, "root", "out")),
		os.Symlink("../root/out", filepath.Join(dir, "root", "twice")),
		os.Symlink("/proc/self/cwd", filepath.Join(dir, "root", "magic")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(wd string) *agentv1.RunSpec {
		s := spec("/bin/true")
		s.Root, s.WorkingDir = filepath.Join(dir, "root"), wd
		return s
	}
	user := spec("/bin/true")
	user.User = "nobody-of-this-name"
	for _, c := range []struct {
		name   string
		spec   *agentv1.RunSpec
		kind   command.Kind
		reason string
	}{
		{"missing", spec("no-such-program"), command.Precondition, command.ReasonNotFound},
		{"missing path", spec("/no/such/program"), command.Precondition, command.ReasonNotFound},
		{"not executable", spec(plain), command.Precondition, command.ReasonNotExecutable},
		{"directory", spec("/etc"), command.Precondition, command.ReasonNotExecutable},
		{"no interpreter", spec(noInterpreter), command.Precondition, command.ReasonNotFound},
		{"dot dot", in("../.."), command.Invalid, command.ReasonDirectory},
		{"absolute outside", in("/etc"), command.Invalid, command.ReasonDirectory},
		{"sibling by prefix", in(filepath.Join(dir, "root2")), command.Invalid, command.ReasonDirectory},
		{"symlink out", in("out"), command.Invalid, command.ReasonDirectory},
		{"symlink out twice", in("twice"), command.Invalid, command.ReasonDirectory},
		{"magic link", in("magic"), command.Invalid, command.ReasonDirectory},
		{"no such directory", in("nowhere"), command.Precondition, command.ReasonDirectory},
		{"no such user", user, command.Invalid, command.ReasonUser},
		{"no argv", spec(), command.Invalid, "SPEC"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEachContainment(t, func(t *testing.T, table *command.Table) {
				_, err := table.Start(t.Context(), uuid.NewString(), c.spec)
				var r *command.Refusal
				if !errors.As(err, &r) || r.Kind != c.kind || r.Reason != c.reason {
					t.Fatalf("got %v (%+v), want kind %d reason %s", err, r, c.kind, c.reason)
				}
				if c.kind == command.Precondition && !strings.Contains(err.Error(), r.Subject) {
					t.Errorf("%v does not name %q", err, r.Subject)
				}
				if n := len(table.List()); n != 0 {
					t.Errorf("%d runs are kept of a start that failed", n)
				}
			})
		})
	}
}

func TestWorkingDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a/b", filepath.Join(root, "inside")); err != nil {
		t.Fatal(err)
	}
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		for wd, want := range map[string]string{"": "", "a": "/a", "a/b/..": "/a", "inside": "/a/b", root + "/a/b": "/a/b", root: ""} {
			s := spec("/bin/pwd", "-P")
			s.Root, s.WorkingDir = root, wd
			out, errOut, _ := result(t, table, s)
			if out != root+want+"\n" {
				t.Errorf("working_dir %q: %q %q", wd, out, errOut)
			}
		}
	})
}

func TestStartIsIdempotentByID(t *testing.T) {
	t.Parallel()
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		marker := filepath.Join(t.TempDir(), "ran")
		s := sh(`echo x >> "$0"`)
		s.Argv = append(s.Argv, marker)
		id := uuid.NewString()
		for range 3 {
			if _, err := table.Start(t.Context(), id, s); err != nil {
				t.Fatal(err)
			}
		}
		var r *command.Refusal
		if _, err := table.Start(t.Context(), id, sh("true")); !errors.As(err, &r) || r.Kind != command.Conflict {
			t.Errorf("another spec: %v", err)
		}
		run, err := table.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		<-run.Done()
		if data, err := os.ReadFile(marker); err != nil || string(data) != "x\n" {
			t.Errorf("ran %q, %v", data, err)
		}
		if err := table.Release(id); err != nil {
			t.Error(err)
		}
		if err := table.Release(id); err != nil {
			t.Errorf("second release: %v", err)
		}
	})
}

func TestRunsAsAnotherUserWithoutPrivileges(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: sudo go test ./guestagent/command")
	}
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		s := sh(`id -u; id -g; id -G; grep -E '^(CapEff|CapPrm|NoNewPrivs):' /proc/self/status; echo $USER $HOME`)
		s.User = "12345:23456"
		out, errOut, _ := result(t, table, s)
		want := "12345\n23456\n23456\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n12345 /\n"
		if out != want {
			t.Errorf("got %q %q", out, errOut)
		}
		out, _, _ = result(t, table, sh(`grep ^NoNewPrivs /proc/self/status`))
		if out != "NoNewPrivs:\t0\n" {
			t.Errorf("the mark has leaked: %q", out)
		}
	})
}

// A process that the run's own root has moved out of its control group is not
// ours to wait for, not even when it holds the pipes open.
func TestEscapedHolderOfPipesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	group := cgrouptest.Delegated(t)
	table := newTable(t, command.Options{CgroupMount: group})
	s := sh(`sleep 300 & echo $! > "$0/cgroup.procs" && echo $!`)
	s.Argv = append(s.Argv, filepath.Dir(group))
	out, errOut, e := result(t, table, s)
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || e.GetCode() != 0 {
		t.Fatalf("%q %q %v", out, errOut, e)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("it had not escaped: %v", err)
	}
}
