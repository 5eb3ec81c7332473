package agentv1_test

import (
	"encoding/json"
	"reflect"
	"testing"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// FuzzParseBootConfig: a configuration that is taken is of the version that is
// known, and comes back the same.
func FuzzParseBootConfig(f *testing.F) {
	f.Add([]byte(`{"version":1,"instance_id":"i","hostname":"h","users":[{"name":"agent","uid":1000,"gid":1000,"home":"/home/agent"}],` +
		`"directories":[{"path":"/workspace","uid":1,"gid":2,"mode":493}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"users":[{}],"directories":[]}`))
	f.Add([]byte(`{"VERSION":1,"mode":-1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := agentv1.ParseBootConfig(raw)
		if err != nil {
			if !reflect.DeepEqual(c, agentv1.BootConfig{}) {
				t.Fatalf("%q is %+v and %v", raw, c, err)
			}
			return
		}
		once, err := json.Marshal(c)
		if err != nil || c.Version != agentv1.BootConfigVersion {
			t.Fatalf("%q is %+v, %v", raw, c, err)
		}
		again, err := agentv1.ParseBootConfig(once)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := json.Marshal(again); err != nil || string(once) != string(twice) {
			t.Fatalf("%s became %s, %v", once, twice, err)
		}
	})
}
