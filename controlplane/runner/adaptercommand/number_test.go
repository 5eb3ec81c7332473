package adaptercommand_test

import (
	"encoding/json"
	"testing"
	"time"
)

// TestWholeNumbers: a number that is whole may be written as a double, which
// is what metadata is to readers of protocol buffers.
func TestWholeNumbers(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"300": 300 * time.Second, "300.0": 300 * time.Second, "1.000": time.Second,
		"300.5": 0, "0.0": 0, "901.0": 0, "300.0e0": 0, "-1.0": 0, `"300.0"`: 0,
	} {
		e := good()
		e["timeout_seconds"] = json.RawMessage(text)
		cmd, broken := prepare(t, request(t, e))
		switch {
		case want == 0 && broken == nil:
			t.Errorf("%s is taken for %v", text, cmd.Spec.GetTimeout().AsDuration())
		case want != 0 && (broken != nil || cmd.Spec.GetTimeout().AsDuration() != want):
			t.Errorf("%s: %v %v", text, cmd, broken)
		}
	}
}
