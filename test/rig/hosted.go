package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// AdapterDir is where a workspace has the adapter that commands run.
const AdapterDir = ".aiwg/ops/adapters/sandbox-agent-runner"

// ShellNode has a shell run the adapter: no Node.js need be installed, nor
// started where every program is slow.
const ShellNode = "#!/bin/sh\nexec /bin/sh \"$@\"\n"

// Hosted is the files of a machine that is a process of this host: the real
// agent, in a fraction of the time that a virtual machine takes.
type Hosted struct {
	Dir       string // has all of it; to be removed when the machine is gone
	Loadout   string // file
	Workspace string
}

// NewHosted writes a loadout, and a workspace with files by their paths in it.
// Commands of the machine find node before any other program of that name.
func NewHosted(name, node string, files map[string]string) (*Hosted, error) {
	// Not below /tmp, which a loadout keeps its hands off.
	dir, err := os.MkdirTemp("/var/tmp", "sandbox-"+name+"-")
	if err != nil {
		return nil, err
	}
	h := &Hosted{Dir: dir, Loadout: filepath.Join(dir, name+".yaml"), Workspace: filepath.Join(dir, "workspace")}
	bin := filepath.Join(dir, "bin")
	all := map[string]string{
		filepath.Join(bin, "node"): node,
		h.Loadout: fmt.Sprintf("apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: %s}\nruntime_options: {kind: host}\n"+
			"image: minimal\nrunners: [echo, adapter-command]\nworkspace: {path: %q}\nenv: {PATH: %q}\n",
			name, h.Workspace, bin+":/usr/bin:/bin"),
	}
	for path, content := range files {
		all[filepath.Join(h.Workspace, path)] = content
	}
	for path, content := range all {
		err := os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // as a workspace that its user made
		if err == nil {
			err = os.WriteFile(path, []byte(content), 0o755) //nolint:gosec // some are programs
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	return h, nil
}
