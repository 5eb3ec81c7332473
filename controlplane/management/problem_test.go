package management_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
)

var update = flag.Bool("update", false, "rewrite the golden files")

type brokenLoadout struct{}

func (brokenLoadout) Error() string { return "two rules are broken" }

func (brokenLoadout) Fields() []fleet.FieldError {
	return []fleet.FieldError{
		{Field: "resources.cpus", Message: "dev.yaml:3:9: resources.cpus: want 1 to 64", Code: "loadout.invalid"},
		{Field: "network.mode", Message: "dev.yaml:7:9: network.mode: want isolated", Code: "loadout.invalid"},
	}
}

func fault(blame instance.Blame, code, hint string, err error) error {
	return fmt.Errorf("while creating: %w", &instance.Fault{Blame: blame, Code: code, Hint: hint, Console: "not shown", Err: err})
}

// TestProblems compares what errors look like from the outside with
// testdata/problems; go test -update rewrites them.
func TestProblems(t *testing.T) {
	const create = `{"loadout":{"name":"minimal"}}`
	fails := func(err error) *fakeFleet {
		return &fakeFleet{
			CreateFn: func(context.Context, fleet.CreateRequest) (fleet.Operation, error) { return fleet.Operation{}, err },
			GetFn:    func(context.Context, string) (fleet.View, error) { return sampleView(), err },
			CancelFn: func(context.Context, string) (fleet.Operation, error) { return fleet.Operation{}, err },
			EventsFn: func(context.Context, uint64, fleet.EventFilter, int) ([]fleet.Event, error) { return nil, err },
			RemoveFn: func(context.Context, instance.ID) error { return err },
			PutArchiveFn: func(_ context.Context, _, _ string, tar io.Reader) (int, int64, error) {
				if _, rerr := io.Copy(io.Discard, tar); rerr != nil {
					return 0, 0, fmt.Errorf("cannot send: %w", rerr)
				}
				return 0, 0, err
			},
		}
	}
	cases := []struct {
		name, method, path, media, body string
		fleet                           *fakeFleet
		status                          int
	}{
		{"not_found", "GET", "/instances/nobody", "", "", fails(fault(instance.Caller, "instance.not_found",
			"sandboxctl ls shows what there is", errors.New(`there is no instance "nobody"`))), 404},
		{"bad_ref", "GET", "/instances/%2e%2e%0a", "", "", nil, 404},
		{"name_taken", "POST", "/instances", "application/json", create, fails(fault(instance.Caller, "instance.name_taken",
			"choose another name", errors.New(`cannot create instance "demo": there is one of this name`))), 409},
		{"loadout_invalid", "POST", "/instances", "application/json", create,
			fails(fault(instance.Caller, "loadout.invalid", "", brokenLoadout{})), 422},
		{"image_not_found", "POST", "/instances", "application/json", create,
			fails(fault(instance.Caller, "image.not_found", "make images", errors.New("no image"))), 422},
		{"provider_unavailable", "POST", "/instances", "application/json", create, fails(fault(instance.Host, "provider.unavailable",
			"apt install qemu-system-x86", errors.New("libvirt is not available: no QEMU"))), 503},
		{"unknown_host_fault", "POST", "/instances", "application/json", create,
			fails(fault(instance.Host, "moon.phase", "wait", errors.New("wrong phase"))), 500},
		{"unknown_guest_fault", "POST", "/instances", "application/json", create,
			fails(fault(instance.Guest, "moon.phase", "wait", errors.New("wrong phase"))), 502},
		{"host_not_found_is_no_404", "POST", "/instances", "application/json", create,
			fails(fault(instance.Host, "kernel.not_found", "", errors.New("no kernel"))), 500},
		{"internal", "POST", "/instances", "application/json", create,
			fails(errors.New("open /secret/path: token sbx_hidden")), 500},
		{"timeout", "POST", "/instances", "application/json", create, fails(fmt.Errorf("x: %w", context.DeadlineExceeded)), 503},
		{"fault_without_cause", "POST", "/instances", "application/json", create, fails(&instance.Fault{Blame: instance.Guest, Code: "a.b"}), 502},
		{"empty_body", "POST", "/instances", "application/json", "", nil, 400},
		{"not_json", "POST", "/instances", "application/json", "loadout: minimal", nil, 400},
		{"trailing", "POST", "/instances", "application/json", create + "{}", nil, 400},
		{"unknown_member", "POST", "/instances", "application/json", `{"loadout":{"name":"m","colour":"red"}}`, nil, 400},
		{"wrong_type", "POST", "/instances", "application/json", `{"loadout":{"name":7}}`, nil, 400},
		{"media_type", "POST", "/instances", "text/yaml", create, nil, 415},
		{"too_large", "POST", "/instances", "application/json", `{"name":"` + strings.Repeat("x", 9<<20) + `"}`, nil, 413},
		{"fields", "POST", "/instances", "application/json",
			`{"name":"-bad-","loadout":{"name":""},"labels":{"":"x"},"env":{"A=B":"secret value"}}`, nil, 422},
		{"state", "GET", "/instances?state=asleep&label=a%3Db%3Dc%28", "", "", nil, 400},
		{"limit", "GET", "/instances?limit=0", "", "", nil, 400},
		{"follow_no_bool", "GET", "/instances/demo/console?follow=perhaps", "", "", nil, 400},
		{"limit_too_large", "GET", "/instances?limit=99999999999999999999", "", "", nil, 400},
		{"body_ends", "POST", "/instances", "application/json", `{"loadout":`, nil, 400},
		{"wrong_types", "POST", "/instances", "application/json", `{"loadout":[],"labels":"a=b"}`, nil, 400},
		{"wrong_label", "POST", "/instances", "application/json", `{"loadout":{"name":"m"},"labels":{"a":true}}`, nil, 400},
		{"next_step", "POST", "/instances/demo:resume", "", "", fails(fault(instance.Caller, "instance.state",
			"start it with `sandboxctl start demo`", errors.New("cannot resume an instance that is stopped"))), 409},
		{"unknown_parameter", "GET", "/instances?stat=running&limit=1&limit=2", "", "", nil, 400},
		{"no_parameters", "GET", "/version?verbose=1", "", "", nil, 400},
		{"limit_no_number", "GET", "/instances?limit=many", "", "", nil, 400},
		{"cursor", "GET", "/instances?cursor=%21", "", "", nil, 400},
		{"cursor_of_another_list", "GET", "/operations?cursor=" + cursorOf("i."+sampleID), "", "", nil, 400},
		{"cursor_event", "GET", "/events?cursor=" + cursorOf("e.007"), "", "", nil, 400},
		{"operation_id", "GET", "/operations/%2e%2e", "", "", nil, 404},
		{"operation_filter", "GET", "/operations?state=done&kind=create", "", "", nil, 400},
		{"operation_wait", "GET", "/operations/" + operationID + "?wait=6m", "", "", nil, 400},
		{"operation_wait", "GET", "/operations/" + operationID + "?wait=007s", "", "", nil, 400},
		{"operation_ended", "POST", "/operations/" + operationID + ":cancel", "", "",
			fails(fault(instance.Caller, "operation.ended", "", errors.New("the operation has ended"))), 409},
		{"event_type", "GET", "/events?type=Phase", "", "", nil, 400},
		{"events_gone", "GET", "/events?cursor=" + cursorOf("e.7"), "", "",
			fails(fault(instance.Caller, "events.gone", "begin anew", errors.New("events before 100 are forgotten"))), 410},
		{"last_event_id", "GET", "/events/stream?after=-1", "", "", nil, 400},
		{"console_tail", "GET", "/instances/demo/console?tail=-1", "", "", nil, 400},
		{"orphan_id", "DELETE", "/orphans/nope", "", "", nil, 404},
		{"orphan_not_found", "DELETE", "/orphans/" + sampleID, "", "",
			fails(fault(instance.Caller, "orphan.not_found", "", errors.New("there is none"))), 404},
		{"ttl", "POST", "/instances", "application/json", `{"loadout":{"name":"m"},"ttl":"-3h"}`, nil, 422},
		{"renew_without_ttl", "POST", "/instances/demo:renew", "application/json", `{}`, nil, 422},
		{"labels_null", "PATCH", "/instances/demo", "application/merge-patch+json", `{"labels":null}`, nil, 400},
		{"labels_missing", "PATCH", "/instances/demo", "application/merge-patch+json", `{}`, nil, 422},
		{"null", "POST", "/instances", "application/json", `{"name":null,"loadout":{"name":"m","layers":{"a":null}}}`, nil, 400},
		{"loadout_rules", "POST", "/instances", "application/json",
			`{"loadout":{"name":"m"},"labels":{"a b":"x","-c":"y","ok/1":"\u001b[2J"},"env":{"1A":"x","AIWG_A2A_X":"y","B-C":"hush","OK":"\u0000"}}`,
			nil, 422},
		{"labels_rules", "PATCH", "/instances/demo", "application/merge-patch+json", `{"labels":{"a b":"x","old one":null}}`, nil, 422},
		{"labels_invalid", "PATCH", "/instances/demo", "application/merge-patch+json", `{"labels":{"":"x"}}`, nil, 422},
		{"body_is_list", "PATCH", "/instances/demo", "application/merge-patch+json", `[]`, nil, 400},
		{"validate_unknown", "POST", "/loadouts:validate", "application/json", `{"name":"nope"}`, nil, 422},
		{"validate_without_name", "POST", "/loadouts:validate", "application/json", `{"content":"x"}`, nil, 422},
		{"no_route", "GET", "/nothing", "", "", nil, 404},
		{"double_slash", "GET", "//instances", "", "", nil, 404},
		{"method", "TRACE", "/instances", "", "", nil, 405},
		{"method_of_verb", "PATCH", "/instances/demo:stop", "", "", nil, 405},
		{"verb_is_no_name", "GET", "/instances/demo:explode", "", "", nil, 404},
		{"if_match_too_long", "DELETE", "/instances/demo", "", "", nil, 400},
		{"unknown_verb", "POST", "/instances/demo:explode", "", "", nil, 404},
		{"no_loadout", "GET", "/loadouts/nope", "", "", nil, 404},
		{"files_without_path", "PUT", "/instances/demo/files", "application/x-tar", "x", nil, 400},
		{"files_relative", "PUT", "/instances/demo/files?path=up", "application/x-tar", "x", nil, 400},
		{"files_media", "PUT", "/instances/demo/files?path=/w", "application/zip", "x", nil, 415},
		{"files_too_large", "PUT", "/instances/demo/files?path=/w", "application/x-tar", strings.Repeat("x", 2<<20), fails(nil), 413},
		{"files_refused", "PUT", "/instances/demo/files?path=/w", "application/x-tar", "x",
			fails(fault(instance.Caller, "agent.invalid_request", "", errors.New(`entry "../x" would leave the directory`))), 422},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := c.fleet
			if f == nil {
				f = &fakeFleet{}
			}
			h := admin(management.New(config(f, nil)))
			r := httptest.NewRequest(c.method, managementv1.BasePath+c.path, strings.NewReader(c.body))
			r.Header.Set("X-Request-Id", "request-1")
			if c.name == "if_match_too_long" {
				r.Header.Set("If-Match", strings.Repeat("x", 513))
			}
			if c.media != "" {
				r.Header.Set("Content-Type", c.media)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("status is %d, want %d", w.Code, c.status)
			}
			if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type is %q", got)
			}
			golden(t, filepath.Join("testdata", "problems", c.name+".json"), w.Body.Bytes())
		})
	}
}

func cursorOf(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, got, "", "  "); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, got)
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, pretty.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (make it with: go test ./controlplane/management -update)", err)
	}
	if !bytes.Equal(pretty.Bytes(), want) {
		t.Errorf("answer differs from %s:\n%s", file, pretty.Bytes())
	}
}

// TestPanicIsAnsweredAndLogged wants an answer without the cause, and the
// cause in the log.
func TestPanicIsAnsweredAndLogged(t *testing.T) {
	var log bytes.Buffer
	f := &fakeFleet{GetFn: func(context.Context, string) (fleet.View, error) { panic("a bug at /secret/path") }}
	h := admin(management.New(config(f, &log)))
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, managementv1.BasePath+"/instances/demo", nil)
	h.ServeHTTP(w, r)
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	for _, want := range []string{"a bug at /secret/path", "request_id=" + w.Header().Get("X-Request-Id"), "problem_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log lacks %q:\n%s", want, log.String())
		}
	}
}

// TestLogHoldsNoSecrets sends secrets everywhere they could stand.
func TestLogHoldsNoSecrets(t *testing.T) {
	var log bytes.Buffer
	f := &fakeFleet{CreateFn: func(context.Context, fleet.CreateRequest) (fleet.Operation, error) {
		return fleet.Operation{}, errors.New("does not work")
	}}
	h := admin(management.New(config(f, &log)))
	for query, status := range map[string]int{"": http.StatusInternalServerError, "?token=hush-query": http.StatusBadRequest} {
		r := httptest.NewRequest(http.MethodPost, managementv1.BasePath+"/instances"+query,
			strings.NewReader(`{"loadout":{"name":"minimal"},"env":{"KEY":"hush-env"}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer hush-token")
		r.Header.Set("X-Request-Id", "forged\nline")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != status || strings.Contains(w.Body.String(), "hush") {
			t.Fatalf("%q: status %d: %s", query, w.Code, w.Body)
		}
	}
	if strings.Contains(log.String(), "hush") || strings.Contains(log.String(), "forged") {
		t.Errorf("log holds a secret:\n%s", log.String())
	}
	if !strings.Contains(log.String(), "principal=tester") || !strings.Contains(log.String(), "status=500") {
		t.Errorf("log lacks the request:\n%s", log.String())
	}
}

// TestScopes wants reads and writes told apart, and nothing without a principal.
func TestScopes(t *testing.T) {
	h := management.New(config(&fakeFleet{}, nil))
	try := func(h http.Handler, method string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, managementv1.BasePath+"/instances/demo", nil))
		return w.Code
	}
	for _, c := range []struct {
		name        string
		h           http.Handler
		read, write int
	}{
		{"nobody", h, 401, 401},
		{"invoke", as(auth.ScopeInvoke, h), 403, 403},
		{"read", as(auth.ScopeFleetRead, h), 200, 403},
		{"write", as(auth.ScopeFleetWrite, h), 403, 202},
		{"admin", as(auth.ScopeAdmin, h), 200, 202},
	} {
		if got := try(c.h, http.MethodGet); got != c.read {
			t.Errorf("%s reads: %d, want %d", c.name, got, c.read)
		}
		if got := try(c.h, http.MethodDelete); got != c.write {
			t.Errorf("%s writes: %d, want %d", c.name, got, c.write)
		}
	}
}
