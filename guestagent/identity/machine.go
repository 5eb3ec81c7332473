package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

var (
	hostnameRule = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)
	userRule     = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
)

// SetHostname names the machine, in the kernel and in the files below dir,
// normally /etc.
func SetHostname(dir, name string) error {
	if !hostnameRule.MatchString(name) {
		return fmt.Errorf("cannot use host name %q: want at most 63 letters, digits and dashes", name)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("cannot set host name %q: %w", name, err)
	}
	if err := update(filepath.Join(dir, "hostname"), 0o644, func([]byte) []byte { return []byte(name + "\n") }); err != nil {
		return err
	}
	return update(filepath.Join(dir, "hosts"), 0o644, func(old []byte) []byte { return addHosts(old, name) })
}

// addHosts makes sure that localhost and the machine's own name resolve.
func addHosts(old []byte, name string) []byte {
	var known []string
	for line := range strings.Lines(string(old)) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 {
			known = append(known, f[1:]...)
		}
	}
	data := old
	if !slices.Contains(known, "localhost") {
		data = appendLine(data, "127.0.0.1\tlocalhost")
		data = appendLine(data, "::1\tlocalhost ip6-localhost ip6-loopback")
	}
	if !slices.Contains(known, name) {
		data = appendLine(data, "127.0.1.1\t"+name)
	}
	return data
}

// SetMachineID gives the machine the id that systemd and D-Bus know it by: its
// instance id without the dashes.
func SetMachineID(dir, instanceID string) error {
	id := strings.ReplaceAll(instanceID, "-", "")
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return fmt.Errorf("cannot make a machine id of instance id %q", instanceID)
	}
	return update(filepath.Join(dir, "machine-id"), 0o444, func([]byte) []byte { return []byte(id + "\n") })
}

// EnsureUsers makes sure of accounts in the passwd and group files of dir.
// Accounts that are there already stay as they are.
func EnsureUsers(dir string, users []agentv1.BootUser) error {
	for _, u := range users {
		if err := checkUser(u); err != nil {
			return err
		}
	}
	if len(users) == 0 {
		return nil
	}
	err := update(filepath.Join(dir, "passwd"), 0o644, func(old []byte) []byte {
		for _, u := range users {
			old = addUser(old, u)
		}
		return old
	})
	if err != nil {
		return err
	}
	return update(filepath.Join(dir, "group"), 0o644, func(old []byte) []byte {
		for _, u := range users {
			old = addGroup(old, u)
		}
		return old
	})
}

func checkUser(u agentv1.BootUser) error {
	if !userRule.MatchString(u.Name) {
		return fmt.Errorf("cannot make user %q: not a user name", u.Name)
	}
	if u.UID < 0 || u.GID < 0 || u.UID >= 1<<32-1 || u.GID >= 1<<32-1 {
		return fmt.Errorf("cannot make user %q: ids %d:%d are out of range", u.Name, u.UID, u.GID)
	}
	if !filepath.IsAbs(u.Home) || strings.ContainsAny(u.Home, ":\n\x00") || len(u.Home) > agentv1.MaxPath {
		return fmt.Errorf("cannot make user %q: home %q is not usable", u.Name, u.Home)
	}
	return nil
}

func addUser(passwd []byte, u agentv1.BootUser) []byte {
	for a := range accounts(passwd) {
		if a.Name == u.Name {
			return passwd
		}
	}
	shell := "/bin/sh"
	return appendLine(passwd, fmt.Sprintf("%s:x:%d:%d::%s:%s", u.Name, u.UID, u.GID, u.Home, shell))
}

func addGroup(group []byte, u agentv1.BootUser) []byte {
	for line := range strings.Lines(string(group)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(f) < 3 {
			continue
		}
		if gid, err := parseID(f[2]); f[0] == u.Name || err == nil && gid == u.GID {
			return group
		}
	}
	return appendLine(group, fmt.Sprintf("%s:x:%d:", u.Name, u.GID))
}

func appendLine(data []byte, line string) []byte {
	data = slices.Clip(data)
	if len(data) > 0 && data[len(data)-1] != '\n' {
		data = append(data, '\n')
	}
	return append(append(data, line...), '\n')
}

// update rewrites a file atomically when its content shall change. A file
// that is there keeps its mode.
func update(path string, mode fs.FileMode, edit func(old []byte) []byte) error {
	old, err := readDatabase(path)
	if err != nil {
		return err
	}
	data := edit(slices.Clone(old))
	info, err := os.Stat(path)
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".sandbox-*")
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
