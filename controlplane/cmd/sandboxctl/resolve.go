package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/settings"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// startIt says how to start the server that keeps its state in stateDir; empty
// for its default place.
func startIt(stateDir string) string {
	if stateDir == "" || stateDir == localhost.SystemStateDir {
		return "start it with: sandboxd serve"
	}
	if own, err := localhost.UserStateDir(); err == nil && own == stateDir {
		return "start it with: sandboxd serve"
	}
	return "start it with: sandboxd serve --state-dir " + stateDir
}

// place is what says where the server is.
type place struct {
	server, stateDir string
	context          settings.Context // zero: none is in use
	explicit         bool             // the context was named by --context
	origin           string           // for doctor
}

// place finds it, in the order that configLong tells.
func (a *app) place() (place, error) {
	if a.server != "" || a.stateDir != "" {
		return place{server: a.server, stateDir: a.stateDir, origin: "given by flag"}, nil
	}
	env := place{server: os.Getenv("SANDBOX_SERVER"), stateDir: os.Getenv("SANDBOX_STATE_DIR"), origin: "given by environment"}
	name, origin := a.context, "context "+a.context
	if name == "" {
		if env.server != "" || env.stateDir != "" {
			return env, nil
		}
		name = os.Getenv("SANDBOX_CONTEXT")
		origin = "context " + name + ", of SANDBOX_CONTEXT"
	}
	file, _, err := readSettings()
	if err != nil {
		return place{}, err
	}
	if name == "" {
		if name = file.Current; name == "" {
			return place{}, nil
		}
		origin = "current context " + name
	}
	c, err := file.Get(name)
	if err != nil {
		return place{}, mendSettings(err)
	}
	return place{server: c.Server, stateDir: c.StateDir, context: c, explicit: a.context != "", origin: origin}, nil
}

// resolve finds the server and the token.
func (a *app) resolve() (*connection, error) {
	p, err := a.place()
	if err != nil {
		return nil, err
	}
	c := &connection{server: strings.TrimRight(p.server, "/"), origin: p.origin}
	if c.token, err = a.token(p); err != nil {
		return nil, err
	}
	if c.server == "" || c.token == "" {
		if err := c.discover(p.stateDir); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// token is the one that somebody gave; empty if nobody did.
func (a *app) token(p place) (string, error) {
	ofContext := func() (string, error) {
		if p.context.TokenFile != "" {
			return readToken(p.context.TokenFile)
		}
		return p.context.Token, nil
	}
	switch {
	case a.tokenFile != "":
		return readToken(a.tokenFile)
	case p.explicit:
		return ofContext()
	case os.Getenv("SANDBOX_TOKEN") != "":
		return os.Getenv("SANDBOX_TOKEN"), nil
	}
	return ofContext()
}

// readToken reads a token and says what to do about a file that is not fit.
func readToken(path string) (string, error) {
	token, err := auth.ReadToken(path)
	var fault *instance.Fault
	if errors.As(err, &fault) {
		return "", withRemedy(fault.Err, fault.Hint)
	}
	return token, err
}

// discover looks for a server of this host, and for the token of the server
// that was named. One whose process is gone counts only when there is no other.
func (c *connection) discover(stateDir string) error {
	dirs := localhost.SearchDirs()
	if stateDir != "" {
		dirs = []string{stateDir}
	}
	var (
		chosen *localhost.Endpoint
		hidden error // a directory that exists and may not be read
		found  string
	)
	for _, dir := range dirs {
		e, err := localhost.Read(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			hidden = err
			continue
		case c.server != "" && strings.TrimRight(e.URL, "/") != c.server && strings.TrimRight(e.PublicURL, "/") != c.server:
			continue
		}
		if chosen == nil || (!chosen.Alive() && e.Alive()) {
			chosen, found = &e, "found in "+dir
		}
	}
	if chosen == nil {
		if c.server != "" {
			return nil // the server will say that it wants a token
		}
		if hidden != nil {
			return &exitError{exitUnreachable, withRemedy(hidden,
				"run this as the user that runs sandboxd, or set SANDBOX_SERVER and SANDBOX_TOKEN")}
		}
		return &exitError{exitUnreachable, withRemedy(fmt.Errorf("no server found in %s", strings.Join(dirs, " or ")),
			startIt(stateDir)+"\nor set SANDBOX_SERVER and SANDBOX_TOKEN, or a context (sandboxctl config), to reach one elsewhere")}
	}
	c.origin = first(c.origin, found)
	if c.server == "" {
		c.server = strings.TrimRight(chosen.URL, "/")
		c.stateDir, c.origin = strings.TrimPrefix(found, "found in "), found
	}
	if c.token != "" {
		return nil
	}
	token, err := readToken(chosen.TokenFile)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &exitError{exitUnreachable, withRemedy(err, "run this as the user that runs sandboxd, or set SANDBOX_TOKEN")}
	case errors.Is(err, fs.ErrNotExist):
		return &exitError{exitUnreachable, withRemedy(err, "restart sandboxd, which makes a new one, or set SANDBOX_TOKEN")}
	case err != nil:
		return err
	}
	c.token = token
	return nil
}
