package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	lv "libvirt.org/go/libvirt"
	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
)

// TestPerform fails each step in turn: what was done, and only that, is undone
// in reverse, also when the context has ended.
func TestPerform(t *testing.T) {
	errStep := errors.New("no")
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "steps")
		bad := rapid.IntRange(0, n).Draw(t, "failing") // n: none
		injected := rapid.Bool().Draw(t, "injected")
		ending := rapid.IntRange(-1, n).Draw(t, "ending") // in the midst of this step, which succeeds; n: never
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if ending < 0 {
			cancel()
		}
		var log []string
		var steps []step
		for i := range n {
			steps = append(steps, step{
				name: strconv.Itoa(i),
				do: func(context.Context) error {
					log = append(log, fmt.Sprintf("do %d", i))
					if i == ending {
						cancel()
					}
					if i == bad && !injected {
						cancel()
						return errStep
					}
					return nil
				},
				undo: func(ctx context.Context) error {
					log = append(log, fmt.Sprintf("undo %d", i))
					return ctx.Err()
				},
			})
		}
		err := perform(ctx, steps, func(name string) error {
			if injected && name == strconv.Itoa(bad) {
				return errStep
			}
			return nil
		})
		// No step is begun after the end of ctx, and none undone that was not begun.
		begun := min(bad+1, ending+1, n)
		failed, ended := bad < begun, ending+1 <= bad && ending+1 < n
		var want []string
		for i := range begun {
			want = append(want, fmt.Sprintf("do %d", i))
		}
		for i := begun - 1; i >= 0 && (failed || ended); i-- {
			want = append(want, fmt.Sprintf("undo %d", i))
		}
		if !slices.Equal(log, want) || errors.Is(err, errStep) != failed || errors.Is(err, context.Canceled) != ended {
			t.Fatalf("did %q, want %q; %v", log, want, err)
		}
	})
}

func TestCheckSpec(t *testing.T) {
	good := func() vm.Spec {
		return vm.Spec{ID: newID(t), Name: "a", CPUs: 1, Memory: 64 << 20, Kernel: "/k", Initramfs: "/i", RootDisk: "/d"}
	}
	if err := checkSpec(good()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*vm.Spec){
		"id":               func(s *vm.Spec) { s.ID = "../etc" },
		"no CPU":           func(s *vm.Spec) { s.CPUs = 0 },
		"too many CPUs":    func(s *vm.Spec) { s.CPUs = 1000 },
		"little memory":    func(s *vm.Spec) { s.Memory = 1 << 20 },
		"odd memory":       func(s *vm.Spec) { s.Memory++ },
		"odd disk size":    func(s *vm.Spec) { s.DiskSize = 511 },
		"control in name":  func(s *vm.Spec) { s.Name = "a\x00b" },
		"line in argument": func(s *vm.Spec) { s.KernelArgs = []string{"a\nb"} },
		"long arguments":   func(s *vm.Spec) { s.KernelArgs = []string{strings.Repeat("a", maxCmdline)} },
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			change(&s)
			var f *instance.Fault
			if err := checkSpec(s); !errors.As(err, &f) || f.Blame != instance.Caller {
				t.Errorf("answer is %v", err)
			}
		})
	}
}

func TestHandle(t *testing.T) {
	id := newID(t)
	h, err := newHandle(id)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readHandle(h); err != nil || got != id {
		t.Errorf("handle reads as %q, %v", got, err)
	}
	for name, h := range map[string]vm.Handle{
		"driver":  {Driver: "other", Version: h.Version, Data: h.Data},
		"version": {Driver: h.Driver, Version: 99, Data: h.Data},
		"text":    {Driver: h.Driver, Version: h.Version, Data: []byte("{")},
		"path":    {Driver: h.Driver, Version: h.Version, Data: []byte(`{"id":"../../etc"}`)},
		"nothing": {},
	} {
		if got, err := readHandle(h); err == nil {
			t.Errorf("%s: a wrong handle reads as %q", name, got)
		}
	}
}

func TestRecord(t *testing.T) {
	id := newID(t)
	f := files(filepath.Join(t.TempDir(), string(id)))
	if _, err := loadRecord(f); !errors.Is(err, errNoRecord) {
		t.Errorf("missing record answers %v", err)
	}
	if err := os.Mkdir(f.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	spec := vm.Spec{ID: id, Name: "n", CPUs: 2, Memory: 1 << 30, Kernel: "/k", KernelArgs: []string{"a"}, RootDisk: "/d", DiskSize: 512}
	rec := newRecord(spec)
	rec.Run = &run{Way: WayKernel, CID: 5, Resumed: true, Ended: &vm.Exit{Reason: vm.ExitPowerOff}}
	if err := rec.save(f); err != nil {
		t.Fatal(err)
	}
	got, err := loadRecord(f)
	if err != nil || fmt.Sprint(got.spec()) != fmt.Sprint(spec) || got.Run.CID != 5 || got.Run.Ended.Reason != vm.ExitPowerOff {
		t.Errorf("record reads as %+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"text": "{", "version": fmt.Sprintf(`{"version":2,"id":%q}`, id), "other machine": fmt.Sprintf(`{"version":1,"id":%q}`, newID(t)),
	} {
		if err := os.WriteFile(f.record(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadRecord(f); err == nil || errors.Is(err, errNoRecord) {
			t.Errorf("%s: a wrong record answers %v", name, err)
		}
		// What another version wrote is whole; what nobody wrote can only be removed.
		if _, err := loadRecord(f); errors.Is(err, errBadRecord) != (name != "version") {
			t.Errorf("%s: a wrong record answers %v", name, err)
		}
	}
}

func TestAllowed(t *testing.T) {
	user := embedded.Identity{UID: 10, GID: 20, Groups: []int{20, 21}}
	tests := []struct {
		uid, gid uint32
		mode     os.FileMode
		want     os.FileMode
		ok       bool
	}{
		{10, 0, 0o400, mayRead, true},
		{10, 0, 0o044, mayRead, false}, // the owner's bits count, not the others'
		{0, 21, 0o040, mayRead, true},
		{0, 21, 0o004, mayRead, false},
		{0, 0, 0o004, mayRead, true},
		{0, 0, 0o440, mayRead, false},
		{0, 0, 0o711, mayPass, true},
		{0, 0, 0o700, mayPass, false},
		{0, 20, 0o060, mayRead | mayWrite, true},
		{0, 20, 0o040, mayRead | mayWrite, false},
	}
	for _, test := range tests {
		if got := allowed(user, test.uid, test.gid, test.mode, test.want); got != test.ok {
			t.Errorf("owner %d:%d mode %o want %o: %v", test.uid, test.gid, test.mode, test.want, got)
		}
	}
}

// TestCheckShared looks at real files as another user would find them.
func TestCheckShared(t *testing.T) {
	stranger := embedded.Identity{Name: "stranger", UID: 54321, GID: 54321}
	dir := openDir(t)
	base := filepath.Join(dir, "base")
	put(t, base, []byte("x"))
	code := func(user embedded.Identity, path string) string {
		err := checkShared(user, path)
		if err == nil {
			return ""
		}
		return instance.AsFault(err).Code
	}
	if got := code(stranger, base); got != "" {
		t.Errorf("readable file answers %q", got)
	}
	if got := code(stranger, "base"); got != "spec.invalid" {
		t.Errorf("relative path answers %q", got)
	}
	if got := code(stranger, base+"-no"); got != "image.missing" {
		t.Errorf("missing file answers %q", got)
	}
	for _, test := range []struct {
		path string
		mode os.FileMode
		want string
	}{{base, 0o400, "image.unreadable"}, {base, 0o446, "image.writable"}, {base, 0o444, ""}, {dir, 0o700, "path.not_traversable"}} {
		if err := os.Chmod(test.path, test.mode); err != nil {
			t.Fatal(err)
		}
		if got := code(stranger, base); got != test.want {
			t.Errorf("mode %o of %q answers %q, want %q", test.mode, test.path, got, test.want)
		}
	}
	if err := checkShared(stranger, base); !strings.Contains(err.Error(), "chmod a+x "+dir) {
		t.Errorf("fault does not name the command: %v", err)
	}
}

func TestChooseWay(t *testing.T) {
	has, lacks := vsock.Support{Usable: true}, vsock.Support{Reason: "not there", Remedy: "modprobe vhost_vsock"}
	tests := []struct {
		want   Way
		kernel vsock.Support
		way    Way
		remedy string
	}{
		{"", has, WayKernel, ""},
		{WayAuto, lacks, WayVhostUser, ""},
		{WayVhostUser, has, WayVhostUser, ""},
		{WayKernel, has, WayKernel, ""},
		{WayKernel, lacks, WayKernel, "modprobe vhost_vsock"},
		{"tin can", has, "", "use auto, vhost-vsock or vhost-user-vsock"},
	}
	for _, test := range tests {
		way, reason, l := chooseWay(test.want, test.kernel)
		if way != test.way || l.remedy != test.remedy || (l.reason == "") != (test.remedy == "") || (way != "" && reason == "") {
			t.Errorf("%q with %+v: %q, %q, %+v", test.want, test.kernel, way, reason, l)
		}
	}
}

func TestConnectLack(t *testing.T) {
	tests := []struct {
		err  error
		uri  string
		want string
	}{
		{lv.Error{Code: lv.ERR_NO_CONNECT, Message: "no connection driver available"}, "qemu:///embed?root=/x", "libvirt-daemon-driver-qemu"},
		{lv.Error{Code: lv.ERR_INVALID_ARG, Message: "Failed to parse user 'libvirt-qemu'"}, "qemu:///embed?root=/x", "useradd --system --user-group"},
		{lv.Error{Code: lv.ERR_SYSTEM_ERROR, Message: "Failed to connect socket"}, "qemu:///system", "libvirt-daemon-system"},
		{errors.New("odd"), "qemu:///embed?root=/x", "log"},
	}
	for _, test := range tests {
		l := connectLack(fmt.Errorf("cannot connect: %w", test.err), test.uri)
		if !strings.Contains(l.remedy, test.want) || l.reason == "" {
			t.Errorf("%v: %+v", test.err, l)
		}
	}
}

func TestInitramfs(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "base")
	for _, size := range []int{0, 1, 2, 3, 4, 4097} {
		put(t, fmt.Sprint(base, size), make([]byte, size))
		path := filepath.Join(dir, fmt.Sprint("initramfs", size))
		if err := writeInitramfs(path, fmt.Sprint(base, size), []byte(`{"version":1}`), os.Getuid(), os.Getgid()); err != nil {
			t.Fatal(err)
		}
		got := read(t, path)
		at := strings.Index(string(got), "070701")
		if at%4 != 0 || at < size || at >= size+4 || !strings.Contains(string(got), `config.json`) {
			t.Errorf("base of %d bytes: archive begins at %d", size, at)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("initramfs is %v, %v", info.Mode(), err)
		}
	}
	if err := writeInitramfs(base, base+"0", make([]byte, maxBootConfig+1), 0, 0); err == nil {
		t.Error("a huge boot configuration is accepted")
	}
}

func FuzzPrintable(f *testing.F) {
	for _, s := range []string{
		"plain\n", "\x1b[31mred\x1b[0m\r\n", "\x1b]0;title\x07x", "\x1b", "\x1b[", "\xff\xfe", "a\x00b\x9b31m", "\u202egnp.exe",
		"\x1b\x1b[31m[31m", "\x1b]8;;http://x\x1b\\y",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		out := printable(raw)
		if !utf8.ValidString(out) {
			t.Fatalf("%q is not valid", out)
		}
		for _, r := range out {
			if r != '\n' && r != '\t' && r != '\ufffd' && !unicode.IsPrint(r) {
				t.Fatalf("%q holds %q", out, r)
			}
		}
	})
}

func TestPrintable(t *testing.T) {
	if got := printable([]byte("\x1b[1;31mhot\x1b[0m\r\n\tüber\x1b]0;t\x07 \x07\u202e.")); got != "hot\n\tüber \ufffd\ufffd." {
		t.Errorf("got %q", got)
	}
}

func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	w, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if _, err := w.WriteString("0123456789"); err != nil {
		t.Fatal(err)
	}
	if err := rotate(path, 4); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("ab"); err != nil {
		t.Fatal(err)
	}
	if now, old := string(read(t, path)), string(read(t, path+rotated)); now != "ab" || old != "6789" {
		t.Errorf("file is %q, earlier %q", now, old)
	}
}

func FuzzWatches(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, buf []byte) {
		if got := watchesIn(buf); len(got) > len(buf)/16 {
			t.Errorf("%d watches in %d bytes", len(got), len(buf))
		}
	})
}
