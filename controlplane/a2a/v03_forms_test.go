package a2a

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

func drawPart(t *rapid.T) task.Part {
	var p task.Part
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		s := rapid.String().Draw(t, "text")
		return task.Part{Text: &s} // 0.3 has neither name nor media type for text
	case 1:
		p.Raw = append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "raw")...)
	case 2:
		s := rapid.String().Draw(t, "url")
		p.URL = &s
	case 3:
		data := rapid.SampledFrom([]string{`{}`, `{"data":{"data":{}}}`, `{"value":1}`, `{"value":1,"x":[]}`, `[1]`, `"s"`, `7`, `true`, `null`}).Draw(t, "data")
		return task.Part{Data: json.RawMessage(data)}
	}
	p.Filename = rapid.String().Draw(t, "name")
	p.MediaType = rapid.String().Draw(t, "type")
	return p
}

// TestFormsOf03 writes messages in both spellings of 0.3 and reads them back:
// nothing that 0.3 can say gets lost.
func TestFormsOf03(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := task.Message{
			MessageID: rapid.StringMatching("[a-z]{1,9}").Draw(t, "id"), ContextID: "c", Role: task.User,
			Parts: rapid.SliceOfN(rapid.Custom(drawPart), 1, 5).Draw(t, "parts"),
		}
		if rapid.Bool().Draw(t, "more") {
			m.Metadata = task.Metadata{"k": json.RawMessage(`[1]`)}
			m.Extensions, m.ReferenceTaskIDs, m.TaskID = []string{"e"}, []string{"r"}, "t"
		}
		for _, b := range []binding{jsonRPC, httpJSON} {
			raw, err := json.Marshal(map[string]any{"message": b.message(m)})
			if err != nil {
				t.Fatal(err)
			}
			req, f := decodeSend03(raw)
			if f != nil {
				t.Fatalf("%s: %+v", raw, f)
			}
			if diff := cmp.Diff(m, req.message); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", raw, diff)
			}
		}
	})
}

func TestStatesOf03(t *testing.T) {
	for s, want := range map[task.State][2]string{
		task.Submitted:     {"submitted", "TASK_STATE_SUBMITTED"},
		task.Working:       {"working", "TASK_STATE_WORKING"},
		task.Completed:     {"completed", "TASK_STATE_COMPLETED"},
		task.Failed:        {"failed", "TASK_STATE_FAILED"},
		task.Canceled:      {"canceled", "TASK_STATE_CANCELLED"},
		task.InputRequired: {"input-required", "TASK_STATE_INPUT_REQUIRED"},
		task.Rejected:      {"rejected", "TASK_STATE_REJECTED"},
		task.AuthRequired:  {"auth-required", "TASK_STATE_AUTH_REQUIRED"},
		"other":            {"unknown", "other"},
	} {
		if got := [2]string{jsonRPC.state(s), httpJSON.state(s)}; got != want {
			t.Errorf("%s is %v, want %v", s, got, want)
		}
		u, ok := jsonRPC.statusUpdate(map[string]any{"status": task.Status{State: s}}).(oldStatusUpdate)
		if final := s.Terminal() || s.Interrupted(); !ok || u.Final != final {
			t.Errorf("%s: final is %t", s, u.Final)
		}
	}
}

// FuzzSend03 reads whatever bytes: what is taken is a message that keeps the
// rules and comes back the same through either spelling.
func FuzzSend03(f *testing.F) {
	for _, seed := range []string{
		`{"message":{"role":"user","parts":[{"kind":"text","text":"x"}]}}`, `{"message":{"role":"ROLE_USER","content":[{"text":"x"}]}}`,
		`{"message":{"role":"user","parts":[{"kind":"file","file":{"bytes":"aGk=","name":"n"}},{"file":{"fileWithUri":"u"}}]}}`,
		`{"message":{"role":"user","parts":[{"data":{"data":{}}},{"kind":"data","data":{"value":1},"metadata":{"data_part_compat":true}}]}}`,
		`{"message":{"role":"user","parts":[{"raw":"AA"},{"url":"u"},{"data":null}]},"configuration":{"blocking":false,"historyLength":"3"}}`,
		`{"message":{"role":"user","parts":[{"kind":"data","data":`, `[]`, `{"message":{"kind":7}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, fault := decodeSend03(raw)
		if fault != nil {
			if fault.http != 400 || len(fault.violations) > maxViolations {
				t.Fatalf("%+v", fault)
			}
			return
		}
		m := req.message
		if m.Role != task.User || len(m.Parts) == 0 || len(m.Parts) > maxParts || checkID(m.MessageID) != "" || checkID(m.ContextID) != "" {
			t.Fatalf("%q became %+v", raw, m)
		}
		for i, p := range m.Parts {
			kinds := 0
			for _, has := range []bool{p.Text != nil, p.Raw != nil, p.URL != nil, p.Data != nil} {
				if has {
					kinds++
				}
			}
			if kinds != 1 {
				t.Fatalf("part %d of %q has %d kinds", i, raw, kinds)
			}
		}
		if !json.Valid(raw) {
			t.Fatalf("%q was taken", raw)
		}
		for _, b := range []binding{jsonRPC, httpJSON} {
			out, err := json.Marshal(b.message(m))
			if err != nil || !json.Valid(out) {
				t.Fatalf("%q cannot be written: %v", raw, err)
			}
		}
	})
}
