package debian

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
)

// Wheel names one Python package file exactly.
type Wheel struct {
	Name, Version string
	// Platform is the tag of the machines it runs on, such as
	// "manylinux_2_17_x86_64".
	Platform string
	SHA256   string
}

// DownloadWheel fetches a wheel into dir, which must be empty, and returns its
// path. pip itself refuses a file with another hash.
func DownloadWheel(ctx context.Context, w Wheel, dir string, line func(string)) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("cannot download wheel %s %s: %w", w.Name, w.Version, err)
	}
	requirements := filepath.Join(dir, "requirements.txt")
	pin := fmt.Sprintf("%s==%s --hash=sha256:%s\n", w.Name, w.Version, w.SHA256)
	if err := os.WriteFile(requirements, []byte(pin), 0o644); err != nil {
		return fail(err)
	}
	err := hosttool.Run(ctx, hosttool.Command{
		Tool: hosttool.Python,
		Args: []string{
			"-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
			"--require-hashes", "--platform", w.Platform, "--dest", dir, "--requirement", requirements,
		},
		Line: line,
	})
	if err != nil {
		return fail(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return fail(err)
	}
	if len(found) != 1 {
		return fail(fmt.Errorf("%d files came", len(found)))
	}
	return found[0], nil
}

// CheckPip returns a *hosttool.MissingError when pip is not on this host.
func CheckPip(ctx context.Context) error {
	err := hosttool.Run(ctx, hosttool.Command{Tool: hosttool.Python, Args: []string{"-m", "pip", "--version"}})
	if err != nil && ctx.Err() == nil {
		return &hosttool.MissingError{Tools: []hosttool.Tool{hosttool.Python}}
	}
	return err
}
