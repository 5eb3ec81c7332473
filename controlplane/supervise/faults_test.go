package supervise

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// TestNothingLeftPointsToTheOperation: a machine that is gone has no console,
// its name may be another's already.
func TestNothingLeftPointsToTheOperation(t *testing.T) {
	for _, code := range []string{codeNoAnswer, codeEnded, codeKilled, codePanicked, codePoweredOff} {
		before := &instance.Fault{
			Blame: instance.Guest, Code: code, Err: errors.New("x"), Console: "panic",
			Hint: "start it again with `sandboxctl start dev`; `sandboxctl logs dev` shows the end of its console",
		}
		after := instance.AsFault(nothingLeft(fmt.Errorf("create: %w", before), "op-1"))
		if after.Code != code || after.Console != "panic" || !strings.Contains(after.Hint, "`sandboxctl ops show op-1`") ||
			strings.Contains(after.Hint, "dev") {
			t.Errorf("%s: %+v", code, after)
		}
		if !strings.Contains(before.Hint, "dev") {
			t.Errorf("%s: the fault itself was changed", code)
		}
	}
	for name, err := range map[string]error{
		"another fault": &instance.Fault{Code: "image.unusable", Hint: "make images", Err: errors.New("x"), Console: "c"},
		"no console":    &instance.Fault{Code: codeEnded, Hint: "start it", Err: errors.New("x")},
	} {
		if after := instance.AsFault(nothingLeft(err, "op-1")); after.Hint != instance.AsFault(err).Hint {
			t.Errorf("%s: %q", name, after.Hint)
		}
	}
	if err := errors.New("x"); nothingLeft(err, "op-1") != err { //nolint:errorlint // the very same
		t.Error("an error that is no fault was changed")
	}
}
