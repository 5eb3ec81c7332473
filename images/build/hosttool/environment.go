package hosttool

import (
	"slices"
	"strings"
)

// environment is what of the caller's environment a program is given: where
// programs, caches and servers are, and how servers are reached. Nothing else,
// for what is built must not depend on who builds it: PYTHONDONTWRITEBYTECODE
// alone leaves files out of a root disk. Locale and time zone are fixed.
func environment(caller []string) []string {
	kept := slices.DeleteFunc(slices.Clone(caller), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !passes(name)
	})
	return append(kept, "LC_ALL=C.UTF-8", "TZ=UTC")
}

func passes(name string) bool {
	switch name {
	case "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NETRC", "APT_CONFIG":
		return true
	}
	return strings.HasPrefix(name, "PIP_") || strings.HasSuffix(strings.ToLower(name), "_proxy")
}
