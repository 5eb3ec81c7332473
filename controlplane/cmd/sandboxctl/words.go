package main

import (
	"regexp"
	"strings"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// The server names next steps as requests of its API, in backquotes. Whoever
// types commands is shown those; what is printed for programs stays as it came.
var requestForm = regexp.MustCompile("`(GET|POST|DELETE) " + regexp.QuoteMeta(managementv1.BasePath) +
	`/([a-z]+)(?:/([A-Za-z0-9-]{1,64}|\{ref\}))?(?:(:|/)([a-z]+))?(\?force=true)?` + "`")

// commandFor is the command that makes a request, without its name. In a
// request {} stands for the name of what it is made of.
func commandFor(request string) string {
	return map[string]string{
		"GET instances":             "ls",
		"GET instances/{}":          "show",
		"GET instances/{}/logs":     "logs",
		"GET instances/{}/console":  "console",
		"POST instances/{}:start":   "start",
		"POST instances/{}:stop":    "stop",
		"POST instances/{}:restart": "restart",
		"POST instances/{}:pause":   "pause",
		"POST instances/{}:resume":  "resume",
		"DELETE instances/{}":       "rm",
		"GET operations":            "ops",
		"GET operations/{}":         "ops show",
		"GET events":                "events",
		"GET loadouts":              "loadouts",
		"GET images":                "images",
		"GET providers":             "providers",
		"GET host":                  "doctor",
		"GET orphans":               "orphans",
	}[request]
}

// inCommands says the next steps in a text as commands of this program.
func inCommands(text string) string {
	return requestForm.ReplaceAllStringFunc(text, func(s string) string {
		m := requestForm.FindStringSubmatch(s)
		method, noun, name, verb, force := m[1], m[2], m[3], m[4]+m[5], m[6]
		request := method + " " + noun
		if name != "" {
			request += "/{}"
		}
		command := commandFor(request + verb)
		switch {
		case command == "", force != "" && command != "stop":
			return s
		case force != "":
			command += " --force"
		}
		if name == "{ref}" {
			name = "NAME"
		}
		return "`" + strings.TrimSpace("sandboxctl "+command+" "+name) + "`"
	})
}
