package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

// The versions of what this package does. A change that makes other bytes out
// of the same inputs must raise the version of the part it is in.
const (
	kernelVersion    = 1
	rootDiskVersion  = 1
	initramfsVersion = 1
)

// epoch is the time that everything in a root disk is at most as young as:
// 2024-01-01. It is fixed so that the day of the build does not matter.
const epoch = 1704067200

// The labels under which a manifest keeps the hashes of its parts' inputs.
const (
	labelKernelInput   = "input.kernel"
	labelRootDiskInput = "input.root_disk"
	labelKernelRelease = "kernel.release"
	labelKernelNote    = "kernel.note"
	labelAgent         = "agent.sha256"
)

// hashInputs returns the digest over the JSON of the inputs.
func hashInputs(inputs ...any) (images.Digest, error) {
	data, err := json.Marshal(inputs)
	if err != nil {
		return "", fmt.Errorf("cannot hash inputs: %w", err)
	}
	sum := sha256.Sum256(data)
	return images.Digest(hex.EncodeToString(sum[:])), nil
}

func (b *builder) kernelInput(r recipes.Recipe) (images.Digest, error) {
	return hashInputs("kernel", kernelVersion, b.architecture, r.Suite, r.Kernel, requiredModules(), optionalModules())
}

// rootDiskInput covers all of the recipe that the root disk is made from, and
// the versions of the programs that lay out its bytes.
func (b *builder) rootDiskInput(ctx context.Context, r recipes.Recipe) (images.Digest, error) {
	versions, err := toolVersions(ctx)
	if err != nil {
		return "", err
	}
	r.Description, r.Kernel = "", ""
	return hashInputs("root disk", rootDiskVersion, epoch, b.architecture, r, versions)
}

// toolVersions are the first lines of what the programs say they are.
func toolVersions(ctx context.Context) ([]string, error) {
	var out []string
	for _, c := range []hosttool.Command{
		{Tool: hosttool.Mmdebstrap, Args: []string{"--version"}},
		{Tool: hosttool.Mke2fs, Args: []string{"-V"}},
		{Tool: hosttool.QemuImg, Args: []string{"--version"}},
	} {
		first := ""
		c.Line = func(l string) { // mke2fs says it on its standard error
			if first == "" {
				first = l
			}
		}
		stdout, err := hosttool.Output(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("cannot find out the version of %s: %w", c.Tool, err)
		}
		if line, _, _ := strings.Cut(strings.TrimSpace(stdout), "\n"); line != "" {
			first = line
		}
		out = append(out, first)
	}
	return out, nil
}

func hashFile(path string) (images.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return images.Digest(hex.EncodeToString(h.Sum(nil))), nil
}
