package sqlite

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestWritten: what a page counts for a part is what its content takes.
func TestWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune("\"\\\n\r\t\b\f\x00\x01\x1f\x7f<>&\u2028\u2029é😀a")))).Draw(t, "text")
		raw := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "raw")
		for _, c := range []struct {
			part    task.Part
			content any
		}{{task.TextPart(text), text}, {task.Part{URL: &text}, text}, {task.Part{Raw: raw}, raw}, {task.Part{Data: json.RawMessage(`{"a":1}`)}, map[string]int{"a": 1}}} {
			want, err := json.Marshal(c.content)
			if err != nil {
				t.Fatal(err)
			}
			length := len(want)
			if want[0] == '"' {
				length -= 2
			}
			if got := written(c.part); got != length {
				t.Fatalf("%s counts as %d bytes, not %d", want, got, length)
			}
		}
	})
}
