package identity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nbroken line\nbad:x:-1:0::/:\nagent:x:1000:1001::/home/agent:/bin/sh\nnohome:x:7:7:::\n"
	group  = "root:x:0:\nvideo:x:44:agent,other\ndocker:x:999:other,agent\nnot:x:5:agents\n"
)

func TestFind(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]Account{
		"root":   {Name: "root", Home: "/root"},
		"agent":  {Name: "agent", UID: 1000, GID: 1001, Home: "/home/agent", Groups: []int{44, 999}},
		"1000":   {Name: "agent", UID: 1000, GID: 1001, Home: "/home/agent", Groups: []int{44, 999}},
		"1000:5": {Name: "agent", UID: 1000, GID: 5, Home: "/home/agent", Groups: []int{44, 999}},
		"4242":   {Name: "4242", UID: 4242, GID: 4242, Home: "/"},
		"4242:1": {Name: "4242", UID: 4242, GID: 1, Home: "/"},
		"nohome": {Name: "nohome", UID: 7, GID: 7, Home: "/"},
	} {
		got, err := find([]byte(passwd), []byte(group), user)
		if err != nil {
			t.Errorf("%q: %v", user, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", user, diff)
		}
	}
	for _, user := range []string{"nobody", "bad", "", "4294967295", "1:", "1:x", "99999999999", "1:2:3", "-1", strings.Repeat("a", 300)} {
		if a, err := find([]byte(passwd), []byte(group), user); err == nil {
			t.Errorf("%q is %+v", user, a)
		}
	}
	if _, err := find([]byte(passwd), nil, "nobody"); !errors.Is(err, ErrNoUser) {
		t.Errorf("unknown: %v", err)
	}
}

func FuzzFind(f *testing.F) {
	f.Add([]byte(passwd), []byte(group), "agent")
	f.Add([]byte("a:::::::"), []byte(":::a"), "0:0")
	f.Fuzz(func(t *testing.T, p, g []byte, user string) {
		a, err := find(p, g, user)
		if err == nil && (a.UID < 0 || a.GID < 0 || a.Home == "" || len(a.Groups) > 64) {
			t.Errorf("%+v", a)
		}
	})
}

func TestEnsureUsersIsIdempotent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write("passwd", "root:x:0:0:root:/root:/bin/sh") // no newline at the end
	users := []agentv1.BootUser{{Name: "agent", UID: 1000, GID: 1000, Home: "/home/agent"}, {Name: "root", UID: 0, GID: 0, Home: "/root"}}
	for range 2 {
		if err := EnsureUsers(dir, users); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n",
			"group":  "agent:x:1000:\nroot:x:0:\n",
		} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || string(got) != want {
				t.Errorf("%s: %q %v", name, got, err)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "passwd")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode: %v %v", info, err)
	}
	for _, u := range []agentv1.BootUser{
		{Name: "a:b", Home: "/"}, {Name: "x\ny", Home: "/"}, {Name: "ok", UID: -1, Home: "/"}, {Name: "ok", Home: "rel"}, {Name: "ok", Home: "/a:b"},
	} {
		if err := EnsureUsers(dir, []agentv1.BootUser{u}); err == nil {
			t.Errorf("%+v was taken", u)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".sandbox-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestAddHosts(t *testing.T) {
	t.Parallel()
	once := addHosts([]byte("10.0.0.1 vm-one-of-many # vm-one"), "vm-one")
	want := "10.0.0.1 vm-one-of-many # vm-one\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tvm-one\n"
	if string(once) != want {
		t.Errorf("got %q", once)
	}
	if twice := addHosts(once, "vm-one"); string(twice) != want {
		t.Errorf("twice: %q", twice)
	}
}

func TestSetMachineID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := SetMachineID(dir, "0190a0a0-0000-7000-8000-000000000001"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "machine-id")); err != nil || string(got) != "0190a0a0000070008000000000000001\n" {
		t.Errorf("%q %v", got, err)
	}
	for _, id := range []string{"", "x", "0190A0A0-0000-7000-8000-000000000001"} {
		if err := SetMachineID(dir, id); err == nil {
			t.Errorf("%q was taken", id)
		}
	}
}
