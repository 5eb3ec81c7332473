package loadouts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

func TestLifecycle(t *testing.T) {
	for text, want := range map[string]loadouts.Lifecycle{
		"":                                 {},
		"lifecycle: {}\n":                  {},
		"lifecycle: {ttl_seconds: 3600}\n": {TTLSeconds: 3600},
		"lifecycle:\n  idle: {timeout_seconds: 60}\n": {Idle: &loadouts.Idle{TimeoutSeconds: 60, Action: loadouts.IdlePause, Wake: true}},
		"lifecycle:\n  idle: {timeout_seconds: 60, action: stop, wake: false}\n": {
			Idle: &loadouts.Idle{TimeoutSeconds: 60, Action: loadouts.IdleStop},
		},
		"lifecycle:\n  idle: {timeout_seconds: 60, wake: \"true\"}\n": {
			Idle: &loadouts.Idle{TimeoutSeconds: 60, Action: loadouts.IdlePause, Wake: true},
		},
	} {
		got := resolve(t, head+"image: minimal\n"+text).Lifecycle
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	l := loadouts.Lifecycle{TTLSeconds: 90, Idle: &loadouts.Idle{TimeoutSeconds: 5}}
	if l.TTL() != 90*time.Second || l.Idle.Timeout() != 5*time.Second {
		t.Errorf("as durations: %v, %v", l.TTL(), l.Idle.Timeout())
	}
}

// TestLifecycleOfLayers: single values of the later document win.
func TestLifecycleOfLayers(t *testing.T) {
	layer := "apiVersion: loadout/v1\nkind: layer\nmetadata: {name: y}\nlifecycle: {ttl_seconds: 100, idle: {timeout_seconds: 60, action: stop}}\n"
	doc := head + "image: minimal\nextends: [y]\nlifecycle: {idle: {wake: false}}\n"
	r, err := loadouts.Resolve("x", fromMap(map[string]string{"x": doc, "y": layer}))
	if err != nil {
		t.Fatal(err)
	}
	want := loadouts.Lifecycle{TTLSeconds: 100, Idle: &loadouts.Idle{TimeoutSeconds: 60, Action: loadouts.IdleStop}}
	if diff := cmp.Diff(want, r.Lifecycle); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBrokenLifecycle(t *testing.T) {
	for text, want := range map[string]string{
		"lifecycle: {ttl_seconds: 1h}\n":                              "lifecycle.ttl_seconds: want a whole number from 10",
		"lifecycle: {ttl_seconds: 0}\n":                               "lifecycle.ttl_seconds: want a whole number from 10",
		"lifecycle: {ttl: 3}\n":                                       `unknown field "ttl"`,
		"lifecycle: {idle: {action: stop}}\n":                         "lifecycle.idle.timeout_seconds: want this field",
		"lifecycle: {idle: {timeout_seconds: 5, action: kill}}\n":     "lifecycle.idle.action: want pause or stop",
		"lifecycle: {idle: {timeout_seconds: 5, wake: yes please}}\n": "lifecycle.idle.wake: want true or false",
		"lifecycle: {idle: {timeout_seconds: true}}\n":                "lifecycle.idle.timeout_seconds: want text",
		"lifecycle: [a]\n":                                            "lifecycle: want a map",
		"runners: [true]\n":                                           "runners[0]: want text",
	} {
		_, err := loadouts.Resolve("x", fromMap(map[string]string{"x": head + "image: minimal\n" + text}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
