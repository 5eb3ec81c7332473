package recipes

import (
	"strings"
	"testing"
)

func TestShippedRecipesParse(t *testing.T) {
	if got := Names(); strings.Join(got, " ") != "debian-12-agentic-dev minimal" {
		t.Errorf("Names() = %q", got)
	}
	for _, name := range Names() {
		r, err := Shipped(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.Name != name {
			t.Errorf("recipe in %s.yaml calls itself %q", name, r.Name)
		}
		if len(r.Users) == 0 || r.Users[0].Name != "agent" || r.Users[0].UID != 1000 {
			t.Errorf("%s: users are %+v, want agent with uid 1000 first", name, r.Users)
		}
	}
}

func TestUnknownRecipeNamesThoseThatExist(t *testing.T) {
	_, err := Shipped("nonesuch")
	if err == nil || !strings.Contains(err.Error(), "minimal") {
		t.Errorf("error = %v, want one that names the shipped recipes", err)
	}
}

const good = `name: x
from: debian
suite: bookworm
kernel: linux-image-cloud-amd64
packages: [git]
disk: {size: 1GiB, uuid: 6d1f1a52-3f0e-4b1d-9a54-0f6f6f7a1c02}
`

func TestParseRefuses(t *testing.T) {
	if _, err := Parse([]byte(good)); err != nil {
		t.Fatalf("the base recipe does not parse: %v", err)
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown field", "suite:", "suit: x\nsuite:", "not found"},
		{"two documents", "name: x", "name: x\n---\nname: y", ""},
		{"unknown source", "from: debian", "from: oci", "oci"},
		{"option as package", "[git]", "[--allow-unauthenticated]", "package name"},
		{"no packages", "[git]", "[]", "packages"},
		{"no unit", "1GiB", "1073741824", "MiB or GiB"},
		{"tiny disk", "1GiB", "1MiB", "disk.size"},
		{"bad uuid", "6d1f1a52-3f0e", "6d1f1a52", "uuid"},
		{"path leaves root", "suite:", "exclude: [/a/../..]\nsuite:", "clean"},
		{"relative path", "suite:", "files: [{path: etc/x, content: y}]\nsuite:", "absolute"},
		{"number as mode", "suite:", "directories: [{path: /x, mode: 755}]\nsuite:", "octal"},
		{"root user", "suite:", "users: [{name: root, uid: 0, gid: 0, home: /root, shell: /bin/sh}]\nsuite:", "user"},
		{"unpinned wheel", "suite:", "wheels: [{name: a, version: 1, platform: p, install: [{from: a, to: /a}]}]\nsuite:", "sha256"},
		{"wheel path", "suite:", "wheels: [{name: a, version: '1', platform: p, sha256: " + strings.Repeat("0", 64) +
			", install: [{from: ../a, to: /a}]}]\nsuite:", "relative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(strings.Replace(good, c.old, c.new, 1)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one with %q", err, c.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	for _, name := range Names() {
		data, err := shipped.ReadFile(name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if err == nil && (r.Name == "" || r.Disk.Size <= 0 || len(r.Packages) == 0) {
			t.Errorf("an incomplete recipe was accepted: %+v", r)
		}
	})
}
