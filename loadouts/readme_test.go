package loadouts_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// TestReadmeTellsTheBounds wants each bound that README tells to be the one
// that holds: what is just within is taken, what is just beyond refused.
func TestReadmeTellsTheBounds(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: l}\nimage: minimal\n"
	many := func(n int, item func(i string) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(item(strconv.Itoa(i)) + "\n")
		}
		return b.String()
	}
	of := func(letter string, n int) string { return strings.Repeat(letter, n) }
	env := func(n int) string { return "env:\n" + many(n, func(i string) string { return "  K" + i + ": v" }) }
	labels := func(n int) string {
		return "apiVersion: loadout/v1\nkind: loadout\nimage: minimal\nmetadata:\n  name: l\n  labels:\n" +
			many(n, func(i string) string { return "    k" + i + ": v" })
	}
	named := func(n int) string { return strings.Replace(head, "name: l", "name: "+of("l", n), 1) }
	for _, c := range []struct{ row, within, beyond string }{
		{"| a file | 256K |", head + "#" + of("x", 256<<10-len(head)-1), head + "#" + of("x", 256<<10-len(head))},
		{"| `metadata.name` | 1 to 128 ", named(128), named(129)},
		{"| `metadata.description` | 1024 characters |", strings.Replace(head, "name: l", "name: l, description: "+of("d", 1024), 1),
			strings.Replace(head, "name: l", "name: l, description: "+of("d", 1025), 1)},
		{"| `metadata.labels` | 64;", labels(64), labels(65)},
		{"| `resources.cpus` | 1 to 256 |", head + "resources: {cpus: 256}\n", head + "resources: {cpus: 257}\n"},
		{"| `resources.memory` | 64M to 4T,", head + "resources: {memory: 64M}\n", head + "resources: {memory: 63M}\n"},
		{"| `resources.memory` | 64M to 4T,", head + "resources: {memory: 4096G}\n", head + "resources: {memory: 4097G}\n"},
		{"| `resources.disk` | 16M to 64T,", head + "resources: {disk: 16M}\n", head + "resources: {disk: 15M}\n"},
		{"| `resources.disk` | 16M to 64T,", head + "resources: {disk: 65536G}\n", head + "resources: {disk: 65537G}\n"},
		{"| `agent.name` | 128 characters |", head + "agent: {name: " + of("n", 128) + "}\n", head + "agent: {name: " + of("n", 129) + "}\n"},
		{"| `agent.description` | 2048 characters |", head + "agent: {description: " + of("n", 2048) + "}\n",
			head + "agent: {description: " + of("n", 2049) + "}\n"},
		{"| `agent.version` | 64 characters |", head + "agent: {version: " + of("n", 64) + "}\n", head + "agent: {version: " + of("n", 65) + "}\n"},
		{"| `workspace.path` | 255 bytes", head + "workspace: {path: /" + of("w", 254) + "}\n", head + "workspace: {path: /" + of("w", 255) + "}\n"},
		{"| `env` | 256;", env(256), env(257)},
		{"values of 32K |", head + "env: {K: " + of("v", 32<<10) + "}\n", head + "env: {K: " + of("v", 32<<10+1) + "}\n"},
		{"| `readiness.setup_timeout_seconds` | 1 to 3600 |", head + "readiness: {setup_timeout_seconds: 3600}\n",
			head + "readiness: {setup_timeout_seconds: 3601}\n"},
		{"| `lifecycle.ttl_seconds` | 10 to 316224000,", head + "lifecycle: {ttl_seconds: 316224000}\n", head + "lifecycle: {ttl_seconds: 316224001}\n"},
		{"| `lifecycle.ttl_seconds` | 10 to 316224000,", head + "lifecycle: {ttl_seconds: 10}\n", head + "lifecycle: {ttl_seconds: 9}\n"},
		{"| `lifecycle.idle.timeout_seconds` | 1 to 316224000 |", head + "lifecycle: {idle: {timeout_seconds: 1}}\n",
			head + "lifecycle: {idle: {timeout_seconds: 0}}\n"},
	} {
		if !strings.Contains(string(page), c.row) {
			t.Errorf("README.md lacks %q", c.row)
		}
		text := func(s string) []byte {
			if strings.HasPrefix(s, "env:") {
				s = head + s
			}
			return []byte(s)
		}
		if _, err := loadouts.Parse("l.yaml", text(c.within)); err != nil {
			t.Errorf("%s: what is within is refused: %v", c.row, err)
		}
		if _, err := loadouts.Parse("l.yaml", text(c.beyond)); err == nil {
			t.Errorf("%s: what is beyond is taken", c.row)
		}
	}
}
