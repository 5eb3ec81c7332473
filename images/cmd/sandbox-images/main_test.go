package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sandbox-images": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", Setup: fill})
}

// fill puts one image into a store for the scripts.
func fill(env *testscript.Env) error {
	s, err := store.Open(filepath.Join(env.WorkDir, "full"))
	if err != nil {
		return err
	}
	file := filepath.Join(env.WorkDir, "blob")
	if err := os.WriteFile(file, []byte("blob"), 0o600); err != nil {
		return err
	}
	m := images.Manifest{
		Version: images.ManifestVersion, Name: "tiny", Architecture: "amd64",
		RootDisk:  images.Blob{Format: images.FormatQCOW2, VirtualSize: 8 << 20},
		Kernel:    images.Blob{Format: images.FormatPVH},
		Initramfs: images.Blob{Format: images.FormatCPIO},
		Labels:    map[string]string{"kernel.release": "6.1.0-test"},
	}
	ctx := env.T().(testing.TB).Context()
	_, err = s.Import(ctx, m, store.Files{RootDisk: file, Kernel: file, Initramfs: file})
	return err
}
