package loadouts

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/images"
)

// The checks of single texts. Each returns what is wanted, or nothing; the
// reader adds what was found.

func oneOf(known ...string) func(string) string {
	return func(s string) string {
		if slices.Contains(known, s) {
			return ""
		}
		return "want " + strings.Join(known, " or ")
	}
}

// length bounds a text in characters. Line breaks and tabs may stand inside,
// other control characters may not: the text ends up in terminals and pages.
func length(least, most int) func(string) string {
	return func(s string) string {
		if n := utf8.RuneCountInString(s); n < least || n > most {
			return fmt.Sprintf("want %d to %d characters", least, most)
		}
		if strings.ContainsFunc(s, isHostile) {
			return "want text without control characters"
		}
		return ""
	}
}

func isHostile(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t'
}

func matches(pattern string, most int, want string) func(string) string {
	re := regexp.MustCompile(pattern)
	return func(s string) string {
		if len(s) > most || !re.MatchString(s) {
			return want
		}
		return ""
	}
}

var (
	// isName, isProvider and isCapability are those of runtime/v1 params.
	isName = matches(`^[a-z0-9][a-z0-9._-]*$`, 128,
		"want a name of 1 to 128 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit")
	isProvider = matches(`^[a-z0-9][a-z0-9._-]*$`, 128,
		"want a provider name such as libvirt")
	isCapability = matches(`^[a-z0-9][a-z0-9._:-]*$`, 128,
		"want a capability such as instance.snapshot")
	isLabel = matches(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`, 128,
		"want a label of 1 to 128 letters, digits, '.', '_', '/' and '-', starting with a letter or digit")
	isUser = matches(`^[a-z_][a-z0-9_-]*$`, 32,
		"want a user name of 1 to 32 of a-z, 0-9, '_' and '-', starting with a letter or '_'")
	isSkillID = matches(`^[A-Za-z0-9][A-Za-z0-9._-]*$`, 128,
		"want an id of 1 to 128 letters, digits, '.', '_' and '-', starting with a letter or digit")
	envName = matches(`^[A-Za-z_][A-Za-z0-9_]*$`, 128,
		"want a variable name of 1 to 128 letters, digits and '_', not starting with a digit")
)

// reservedEnv is set by runners for every command; a loadout that could set
// it first would speak in the runner's name.
const reservedEnv = "AIWG_A2A_"

func isEnvName(s string) string {
	if broken := envName(s); broken != "" {
		return broken
	}
	if strings.HasPrefix(s, reservedEnv) {
		return "names that start with " + reservedEnv + " are set by the runners"
	}
	return ""
}

func isEnvValue(s string) string {
	if len(s) > 32<<10 {
		return "want at most 32 KiB"
	}
	if strings.ContainsRune(s, 0) {
		return "want text without NUL"
	}
	return ""
}

// isLabelValue is what schema.go wants of a label's value.
var isLabelValue = length(0, 256)

// CheckLabel returns what a loadout wants of a label that breaks its rules, or
// nothing. It is for labels that come from elsewhere.
func CheckLabel(key, value string) (want string) {
	if broken := isLabel(key); broken != "" {
		return broken
	}
	if broken := isLabelValue(value); broken != "" {
		return "of the value: " + broken
	}
	return ""
}

// CheckEnv returns what a loadout wants of a variable that breaks its rules, or
// nothing. It is for variables that come from elsewhere; the value is not in
// what it returns.
func CheckEnv(name, value string) (want string) {
	if broken := isEnvName(name); broken != "" {
		return broken
	}
	if broken := isEnvValue(value); broken != "" {
		return "of the value: " + broken
	}
	return ""
}

func number(least, most int) func(string) string {
	return func(s string) string {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most || strconv.Itoa(n) != s {
			return fmt.Sprintf("want a whole number from %d to %d", least, most)
		}
		return ""
	}
}

func size(least, most int64) func(string) string {
	return func(s string) string {
		n, err := ParseSize(s)
		switch {
		case err != nil:
			return "want a size such as 2G"
		case n < least || n > most:
			return fmt.Sprintf("want a size from %s to %s", FormatSize(least), FormatSize(most))
		case n%MiB != 0:
			return "want a multiple of 1M"
		}
		return ""
	}
}

func isImage(s string) string {
	if _, err := images.ParseRef(s); err != nil {
		return "want an image such as debian-12-agentic-dev or name@sha256:<64 hexadecimal digits>"
	}
	return ""
}

func isRuntimeKind(s string) string {
	if s == "container" {
		return "container is not available in this version: want vm or host"
	}
	return oneOf(string(RuntimeVM), string(RuntimeHost))(s)
}

func isNetworkMode(s string) string {
	if s == "allowlist" || s == "full" {
		return s + " is not available in this version: want isolated"
	}
	return oneOf(string(NetworkIsolated))(s)
}

// isWorkspacePath keeps the workspace out of what the guest's system needs.
func isWorkspacePath(s string) string {
	const want = "want an absolute path such as /workspace, without . and .. and not ending with /"
	if len(s) > 255 || !path.IsAbs(s) || path.Clean(s) != s || strings.ContainsFunc(s, unicode.IsControl) {
		return want
	}
	if s == "/" {
		return want
	}
	top, _, _ := strings.Cut(s[1:], "/")
	if slices.Contains([]string{"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr"}, top) {
		return "want a path of its own: /" + top + " belongs to the system"
	}
	return ""
}
