package task_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestCheckMove checks every pair of states.
func TestCheckMove(t *testing.T) {
	all := []task.State{
		task.Submitted, task.Working, task.Completed, task.Failed, task.Canceled, task.InputRequired, task.Rejected, task.AuthRequired, "",
	}
	for _, from := range all {
		for _, to := range all {
			err := task.CheckMove(from, to)
			allowed := from.Valid() && to.Valid() && !from.Terminal() && to != task.Submitted
			if (err == nil) != allowed {
				t.Errorf("from %q to %q: %v", from, to, err)
			}
			if errors.Is(err, task.ErrTerminal) != from.Terminal() {
				t.Errorf("from %q to %q: %v, ErrTerminal only and always after the end", from, to, err)
			}
		}
	}
}

func TestTimestamp(t *testing.T) {
	zone := time.FixedZone("x", 3600)
	b, err := json.Marshal(task.Stamp(time.Date(2026, 1, 2, 3, 4, 5, 6_700_000, zone)))
	if err != nil || string(b) != `"2026-01-02T02:04:05.006Z"` {
		t.Errorf("%s, %v", b, err)
	}
	var back task.Timestamp
	if err := json.Unmarshal([]byte(`"2026-01-02T03:04:05.0069+01:00"`), &back); err != nil || back.UnixMilli() != time.Date(2026, 1, 2, 2, 4, 5, 6_000_000, time.UTC).UnixMilli() {
		t.Errorf("%v, %v", back, err)
	}
}

// TestPartsKeepTheirKind: what goes out comes back as the same kind with the
// same content, the empty ones too.
func TestPartsKeepTheirKind(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := task.Chunk{Data: rapid.SliceOf(rapid.Byte()).Draw(rt, "data")}
		if c.Data == nil {
			c.Data = []byte{}
		}
		b, err := json.Marshal(c.Part())
		if err != nil {
			rt.Fatal(err)
		}
		var p task.Part
		if err := json.Unmarshal(b, &p); err != nil {
			rt.Fatal(err)
		}
		got := p.Raw
		if p.Text != nil {
			got = []byte(*p.Text)
		}
		if string(got) != string(c.Data) || (p.Text != nil) != utf8.Valid(c.Data) || (p.Text != nil) == (p.Raw != nil) {
			rt.Errorf("%q became %s", c.Data, b)
		}
	})
	if b, err := json.Marshal(task.Part{Raw: []byte{}}); err != nil || string(b) != `{"raw":""}` {
		t.Errorf("an empty raw part is %s, %v", b, err)
	}
}

func TestMergeChangesNothing(t *testing.T) {
	a := task.Metadata{"x": json.RawMessage("1")}
	m := a.Merge(task.Metadata{"x": json.RawMessage("2"), "y": json.RawMessage("3")})
	if string(a["x"]) != "1" || string(m["x"]) != "2" || string(m["y"]) != "3" || task.Metadata(nil).Merge(nil) != nil {
		t.Errorf("%v %v", a, m)
	}
}

// TestContent: a part that is taken apart and put together is the same part.
func TestContent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := task.Part{Filename: rapid.String().Draw(rt, "filename"), MediaType: rapid.String().Draw(rt, "mediaType")}
		s := rapid.String().Draw(rt, "content")
		kind := rapid.SampledFrom([]task.Kind{task.KindText, task.KindRaw, task.KindURL, task.KindData}).Draw(rt, "kind")
		switch kind {
		case task.KindText:
			p.Text = &s
		case task.KindURL:
			p.URL = &s
		case task.KindRaw:
			p.Raw = []byte(s)
		case task.KindData:
			b, err := json.Marshal(s)
			if err != nil {
				rt.Fatal(err)
			}
			p.Data = b
		}
		data, form := task.Content(p)
		if form == nil || form.Kind != kind {
			rt.Fatalf("%+v has the form %+v", p, form)
		}
		want, err := json.Marshal(p)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := json.Marshal(task.Chunk{Data: data, Form: form}.Part())
		if err != nil || string(got) != string(want) {
			rt.Errorf("%s became %s, %v", want, got, err)
		}
	})
	two := task.TextPart("x")
	two.Raw = []byte{}
	for _, p := range []task.Part{{}, {Filename: "x"}, two} {
		if _, form := task.Content(p); form != nil {
			t.Errorf("%+v has the form %+v", p, form)
		}
	}
}
