package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
)

// Permissions looks at who may use a daemon's directories: that of its state,
// and that of its images.
func Permissions(dir, images string) []Check {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return append([]Check{{"state directory", OK, dir + " will be made when sandboxd starts", ""}}, imageDir(images)...)
	case err != nil:
		return []Check{{"state directory", Error, fmt.Sprintf("cannot look at it: %v", err),
			"run this as the user that runs sandboxd, or choose another directory with --state-dir"}}
	case !info.IsDir():
		return []Check{{"state directory", Error, dir + " is no directory", "choose another one with --state-dir"}}
	}
	state := Check{"state directory", OK, dir, ""}
	switch {
	case syscall.Access(dir, 0x2|0x1) != nil: // W_OK|X_OK
		state = Check{"state directory", Error, "this user cannot write " + dir,
			"run this as the user that runs sandboxd, or choose another directory with --state-dir"}
	case info.Mode().Perm()&0o022 != 0:
		state.Status, state.Remedy = Warning, "chmod go-w "+dir
		state.Detail = fmt.Sprintf("others can write %s (mode %04o)", dir, info.Mode().Perm())
	}
	checks := []Check{state}
	if _, err := auth.ReadToken(filepath.Join(dir, auth.AdminFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		checks = append(checks, Check{"admin token", Warning, err.Error(), "chmod 600 " + filepath.Join(dir, auth.AdminFile)})
	}
	return append(checks, imageDir(images)...)
}

// imageDir says whether the images are there and the hypervisor, which is
// another user when the daemon is root, can come to them.
func imageDir(dir string) []Check {
	if dir == "" {
		return nil // the server does not tell
	}
	names, err := os.ReadDir(filepath.Join(dir, "names"))
	if errors.Is(err, fs.ErrNotExist) {
		return []Check{{"image directory", Warning, "there are no images in " + dir,
			"make images, and start with: sandboxd serve --image-dir .build/images; or make install"}}
	}
	if err != nil {
		return []Check{{"image directory", Error, fmt.Sprintf("cannot look at it: %v", err), "run this as the user that runs sandboxd"}}
	}
	if len(names) == 0 {
		return []Check{{"image directory", Warning, "no image is in " + dir, "make images, or start with: sandboxd serve --image-dir DIR"}}
	}
	if os.Getuid() != 0 {
		return nil
	}
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.Mode().Perm()&0o001 == 0 {
			return []Check{{"image directory", Warning,
				fmt.Sprintf("the user that QEMU runs as cannot pass %s (mode %04o)", at, info.Mode().Perm()), "chmod o+x " + at}}
		}
	}
	return nil
}
