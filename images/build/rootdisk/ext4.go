package rootdisk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
)

// features are named one by one, because defaults differ between versions of
// e2fsprogs and between distributions.
const features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg," +
	"sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// Disk says what the file system and its disk are like.
type Disk struct {
	Size int64 // bytes
	UUID string
}

// WriteExt4 writes the tree as an ext4 file system into the new file image.
// dir is the directory the tree was made in, work a place for small files.
func (t *Tree) WriteExt4(ctx context.Context, dir, work, image string, disk Disk) error {
	if err := t.writeExt4(ctx, dir, work, image, disk); err != nil {
		return fmt.Errorf("cannot write ext4 file system: %w", err)
	}
	return nil
}

func (t *Tree) writeExt4(ctx context.Context, dir, work, image string, disk Disk) error {
	config := filepath.Join(work, "mke2fs.conf")
	if err := os.WriteFile(config, nil, 0o644); err != nil {
		return err
	}
	env := []string{"E2FSPROGS_FAKE_TIME=" + strconv.FormatInt(t.epoch, 10), "MKE2FS_CONFIG=" + config, "MKE2FS_SKIP_PROGRESS=1"}
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(disk.Size), f.Close()); err != nil {
		return err
	}
	const mib = 1 << 20
	journal := min(max(disk.Size/32/mib, 8), 64)
	err = hosttool.Run(ctx, hosttool.Command{Tool: hosttool.Mke2fs, Env: env, Args: []string{
		"-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-L", "root",
		"-U", disk.UUID, "-O", features, "-J", fmt.Sprintf("size=%d", journal),
		"-E", "hash_seed=" + disk.UUID + ",lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0",
		"-d", dir, image, strconv.FormatInt(disk.Size/1024, 10) + "k",
	}})
	if err != nil {
		return err
	}
	script := filepath.Join(work, "inodes.debugfs")
	if err := t.writeScript(script); err != nil {
		return err
	}
	if err := runDebugfs(ctx, script, image, env); err != nil {
		return err
	}
	// -n changes nothing; -f checks although it is marked clean.
	return hosttool.Run(ctx, hosttool.Command{Tool: hosttool.E2fsck, Env: env, Args: []string{"-f", "-n", image}})
}

// writeScript writes the debugfs commands that set what mke2fs took from the
// host's files: owners, modes and times.
func (t *Tree) writeScript(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	t.setInode(w, "/lost+found", &node{kind: fs.ModeDir, mode: 0o700, mtime: t.epoch})
	for _, p := range t.paths() {
		if n := t.nodes[p]; n.linkTo == "" { // a link shares the inode of its first name
			t.setInode(w, p, n)
		}
	}
	return errors.Join(w.Flush(), f.Close())
}

func (t *Tree) setInode(w *bufio.Writer, p string, n *node) {
	kinds := map[fs.FileMode]uint32{0: 0o100000, fs.ModeDir: 0o040000, fs.ModeSymlink: 0o120000}
	for _, set := range []struct{ field, value string }{
		{"mode", fmt.Sprintf("0%o", kinds[n.kind]|n.mode)},
		{"uid", strconv.Itoa(n.uid)},
		{"gid", strconv.Itoa(n.gid)},
		{"mtime", "@" + strconv.FormatInt(n.mtime, 10)},
		{"ctime", "@" + strconv.FormatInt(t.epoch, 10)},
		{"atime", "@" + strconv.FormatInt(t.epoch, 10)},
		{"crtime", "@" + strconv.FormatInt(t.epoch, 10)},
	} {
		// A path of the tree holds no quotes: resolve refuses them. Writes to
		// a bufio.Writer report their error at Flush.
		_, _ = fmt.Fprintf(w, "sif \"%s\" %s %s\n", p, set.field, set.value)
	}
}

// runDebugfs runs a script of commands. debugfs reports failed commands on
// its standard error and exits with zero all the same.
func runDebugfs(ctx context.Context, script, image string, env []string) error {
	var complaints []string
	err := hosttool.Run(ctx, hosttool.Command{
		Tool: hosttool.Debugfs, Env: env, Args: []string{"-w", "-f", script, image},
		Line: func(line string) {
			const enough = 5
			if !strings.HasPrefix(line, "debugfs ") && len(complaints) < enough {
				complaints = append(complaints, line)
			}
		},
	})
	if err == nil && len(complaints) > 0 {
		err = fmt.Errorf("debugfs says: %s", strings.Join(complaints, "; "))
	}
	return err
}

// WriteQCOW2 converts a raw disk to a compressed qcow2 without a backing file.
func WriteQCOW2(ctx context.Context, raw, out string) error {
	err := hosttool.Run(ctx, hosttool.Command{Tool: hosttool.QemuImg, Args: []string{
		"convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd,cluster_size=65536", raw, out,
	}})
	if err != nil {
		return fmt.Errorf("cannot write qcow2: %w", err)
	}
	return nil
}
