package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/user"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// checkGiven checks what was named on the command line. A default that is
// missing has an answer of its own later; what somebody typed must be so.
func (c *config) checkGiven(given func(flag string) bool) error {
	checks := []struct {
		flag  string
		check func() error
		hint  string
	}{
		{"image-dir", c.checkImageDir, "`make images` builds a store into .build/images, `make install` puts one into the default place"},
		{"agent", c.checkAgent, "`make build` builds it into .build/bin"},
		{"hypervisor-user", c.checkUser, "make a system user of that name, or leave the flag out: `make setup` makes sandbox-qemu"},
		{"accelerator", c.checkAccelerator, "--accelerator auto uses KVM where it is proven to work, and emulates elsewhere"},
		{"libvirt-uri", c.checkLibvirtURI, "leave it out for the libvirt within sandboxd, or name a daemon such as qemu:///system"},
	}
	for _, k := range checks {
		if !given(k.flag) {
			continue
		}
		if err := k.check(); err != nil {
			return &instance.Fault{
				Blame: instance.Caller, Code: "flag.invalid", Hint: k.hint, Err: fmt.Errorf("--%s: %w", k.flag, err),
			}
		}
	}
	return nil
}

// checkImageDir refuses a directory that is not there: an empty store would
// be made of a mistyped name, and machines would lack their images much later.
func (c *config) checkImageDir() error {
	info, err := os.Stat(c.ImageDir)
	switch {
	case err != nil:
		return fmt.Errorf("%q: %w", c.ImageDir, errors.Unwrap(err))
	case !info.IsDir():
		return fmt.Errorf("%q is not a directory", c.ImageDir)
	}
	return nil
}

func (c *config) checkAgent() error {
	info, err := os.Stat(c.AgentPath)
	switch {
	case err != nil:
		return fmt.Errorf("%q: %w", c.AgentPath, errors.Unwrap(err))
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%q is not a program", c.AgentPath)
	}
	return nil
}

// checkUser matters to root alone; for others QEMU runs as they do.
func (c *config) checkUser() error {
	if os.Geteuid() != 0 {
		return nil
	}
	_, err := user.Lookup(c.User)
	return err
}

func (c *config) checkAccelerator() error {
	if c.Accel != "kvm" {
		return nil
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("this host has no /dev/kvm")
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func (c *config) checkLibvirtURI() error {
	u, err := url.Parse(c.LibvirtURI)
	if err != nil {
		return err
	}
	if u.Scheme == "" {
		return fmt.Errorf("%q has no scheme", c.LibvirtURI)
	}
	return nil
}
