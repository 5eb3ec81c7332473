package management

import (
	"regexp"
	"strings"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// Faults name the next step as a command of sandboxctl, in backquotes. Here it
// is said as a request; sandboxctl, which shows what this API says, turns it
// into its command again.
var commandForm = regexp.MustCompile("`sandboxctl ([a-z]+)( ls| show)?( --force)?(?: ([A-Za-z0-9][A-Za-z0-9-]{0,63}))?`")

// requestFor is the method and the path of what a command does. In it stands
// {} for the name of what it is done to.
func requestFor(command string) string {
	return map[string]string{
		"ls":        "GET /instances",
		"show":      "GET /instances/{}",
		"logs":      "GET /instances/{}/logs",
		"console":   "GET /instances/{}/console",
		"start":     "POST /instances/{}:start",
		"stop":      "POST /instances/{}:stop",
		"restart":   "POST /instances/{}:restart",
		"pause":     "POST /instances/{}:pause",
		"resume":    "POST /instances/{}:resume",
		"rm":        "DELETE /instances/{}",
		"ops":       "GET /operations",
		"ops show":  "GET /operations/{}",
		"events":    "GET /events",
		"loadouts":  "GET /loadouts",
		"images":    "GET /images",
		"providers": "GET /providers",
		"doctor":    "GET /host",
		"orphans":   "GET /orphans",
	}[command]
}

// inHTTP says the next steps in a text as requests of this API.
func inHTTP(text string) string {
	if !strings.Contains(text, "`sandboxctl ") {
		return text
	}
	return commandForm.ReplaceAllStringFunc(text, func(s string) string {
		m := commandForm.FindStringSubmatch(s)
		command, force, name := m[1]+strings.TrimSuffix(m[2], " ls"), m[3], m[4]
		request := requestFor(command)
		switch {
		case request == "", !strings.Contains(request, "{}") && name != "", force != "" && command != "stop":
			return s
		case force != "":
			request += "?force=true"
		}
		if name == "" || name == "NAME" {
			name = "{ref}"
		}
		method, path, _ := strings.Cut(request, " ")
		return "`" + method + " " + managementv1.BasePath + strings.Replace(path, "{}", name, 1) + "`"
	})
}
