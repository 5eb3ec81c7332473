package rootdisk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

func needTools(t *testing.T) {
	t.Helper()
	if err := hosttool.Check(hosttool.Mke2fs, hosttool.Debugfs, hosttool.E2fsck, hosttool.QemuImg); err != nil {
		t.Skip(err) // the error says how to install them
	}
}

// writeDisk makes a disk with everything a tree can hold.
func writeDisk(t *testing.T) (raw, qcow2 string) {
	t.Helper()
	tree, dir := newTree(t)
	recipe, err := recipes.Shipped("minimal")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		name := fmt.Sprintf("/usr/share/many/%d/файл %d", i%7, i)
		content := bytes.Repeat([]byte{byte(i)}, i*100)
		if err := tree.addFile(name, 0o640, i, 100000+i, testEpoch-int64(i), bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.addHardlink("/usr/share/link", "/usr/share/many/1/файл 1"); err != nil {
		t.Fatal(err)
	}
	if err := tree.addSymlink("/usr/share/symbolic", "many/1", 0, 0, testEpoch); err != nil {
		t.Fatal(err)
	}
	if err := tree.addFile("/bin/setuid", 0o4755, 0, 0, time.Now().Unix(), strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if err := tree.Finish(recipe); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	raw, qcow2 = filepath.Join(work, "disk.raw"), filepath.Join(work, "disk.qcow2")
	if err := tree.WriteExt4(t.Context(), dir, work, raw, Disk{Size: int64(recipe.Disk.Size), UUID: recipe.Disk.UUID}); err != nil {
		t.Fatal(err)
	}
	if err := WriteQCOW2(t.Context(), raw, qcow2); err != nil {
		t.Fatal(err)
	}
	return raw, qcow2
}

func hash(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func TestDisksAreBitIdentical(t *testing.T) {
	needTools(t)
	raw1, qcow1 := writeDisk(t)
	raw2, qcow2 := writeDisk(t)
	if hash(t, raw1) != hash(t, raw2) {
		t.Error("two file systems of the same tree differ")
	}
	if hash(t, qcow1) != hash(t, qcow2) {
		t.Error("two qcow2 of the same tree differ")
	}
}

// debugfs tells what is really in the file system.
func debugfs(t *testing.T, image, request string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "debugfs", "-R", request, image).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestFileSystemHoldsTheTree(t *testing.T) {
	needTools(t)
	if os.Getuid() != 0 {
		t.Log("run as another user: owners below must be those of the tree all the same")
	}
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	raw, qcow2 := writeDisk(t)
	for request, wants := range map[string][]string{
		`stat "/usr/share/many/3/файл 101"`: {"Type: regular", "Mode:  0640", "User:   101", "Group: 100101", "Size: 10100", "mtime: 0x6592001b"},
		"stat /bin/setuid":                  {"Mode:  04755", "User:     0", "mtime: 0x65920080", "ctime: 0x65920080", "crtime: 0x65920080"},
		"stat /usr/share/link":              {"Links: 2", "User:     1"},
		"stat /usr/share/symbolic":          {"Type: symlink", `Fast link dest: "many/1"`},
		"stat /workspace":                   {"Type: directory", "User:  1000", "Group:  1000", "Mode:  0755"},
		"stat /tmp":                         {"Mode:  01777"},
		"stat /lost+found":                  {"Mode:  0700", "ctime: 0x65920080"},
		"cat /etc/hostname":                 {"sandbox"},
		"cat /etc/passwd":                   {"agent:*:1000:1000:agent:/home/agent:/bin/sh"},
		"show_super_stats -h":               {"6d1f1a52-3f0e-4b1d-9a54-0f6f6f7a1c01", "has_journal", "Mon Jan  1", "Reserved block count:     0"},
	} {
		out := debugfs(t, raw, request)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %q is not in\n%s", request, want, out)
			}
		}
	}
	if out := debugfs(t, raw, "stat /etc/machine-id"); strings.Contains(out, "Inode:") {
		t.Error("the disk has a machine id")
	}
	info, err := exec.CommandContext(t.Context(), "qemu-img", "info", "--output=json", qcow2).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"virtual-size": 268435456`, `"compression-type": "zstd"`} {
		if !strings.Contains(string(info), want) {
			t.Errorf("qemu-img info: %q is not in\n%s", want, info)
		}
	}
	if strings.Contains(string(info), "backing") {
		t.Errorf("the disk has a backing file:\n%s", info)
	}
}

func TestTooSmallDiskSaysSo(t *testing.T) {
	needTools(t)
	tree, dir := newTree(t)
	if err := tree.addFile("/big", 0o644, 0, 0, testEpoch, io.LimitReader(letters{}, 80<<20)); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	err := tree.WriteExt4(t.Context(), dir, work, filepath.Join(work, "disk"), Disk{Size: 64 << 20, UUID: "6d1f1a52-3f0e-4b1d-9a54-0f6f6f7a1c01"})
	if err == nil || !strings.Contains(err.Error(), "mke2fs") {
		t.Errorf("error = %v", err)
	}
}

// letters is endless data of which no block can be left out.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// debugfs reports a failed command only on its standard error.
func TestFailedDebugfsCommandIsAnError(t *testing.T) {
	needTools(t)
	raw, _ := writeDisk(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("sif /not/there mode 0100644\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := runDebugfs(t.Context(), script, raw, nil); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("error = %v", err)
	}
}
