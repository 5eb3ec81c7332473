package a2a

import (
	"encoding/json"
	"reflect"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
)

// TestStoredFault: what is kept of a fault is all of it.
func TestStoredFault(t *testing.T) {
	if have, want := reflect.TypeFor[storedFault]().NumField(), reflect.TypeFor[fault]().NumField(); have != want {
		t.Fatalf("a fault has %d members, what is kept of it %d: add the new ones to storedFault", want, have)
	}
	f := &fault{
		rpc: 1, http: 2, status: "3", reason: "4", domain: "5", message: "<6>", meta: map[string]string{"7": "&"},
		violations: []runner.Violation{{Field: "8", Description: "9"}}, second: "10", secondMeta: map[string]string{"11": "12"},
		retryAfter: 13, rpcHTTP: 14, more: []any{struct {
			Z int `json:"z"`
			A any `json:"a"`
		}{15, map[string]int{"16": 17}}},
	}
	v := reflect.ValueOf(*f)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the test sets no %s", v.Type().Field(i).Name)
		}
	}
	kept, err := newStoredFault(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	var s storedFault
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	got := s.fault()
	have, err := json.Marshal(got.details())
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(f.details())
	if err != nil || string(have) != string(want) {
		t.Errorf("details are %s, want %s, %v", have, want, err)
	}
	got.more, f.more = nil, nil
	if !reflect.DeepEqual(got, f) {
		t.Errorf("kept is %+v, want %+v", got, f)
	}
}
