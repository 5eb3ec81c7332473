package sqlite_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// whole is what of a record a reader knows, without the marks of what was cut.
func whole(rec task.Record) (text map[string]string, rest []any) {
	text = map[string]string{}
	for _, a := range rec.Artifacts {
		for _, p := range a.Parts {
			if p.Text != nil {
				text[a.ArtifactID] += *p.Text
			}
			text[a.ArtifactID] += string(p.Raw)
		}
	}
	return text, []any{rec.Status, rec.Metadata, rec.History, rec.LastSeq}
}

// TestConsistentView: a task that does not fit is what it was at an earlier
// event, in every part, and the events behind that one make it what it is.
func TestConsistentView(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		l := life{t: t, db: db, was: map[uint64]task.Record{}}
		rec, err := db.Create(t.Context(), newTask(fmt.Sprint("t", n)))
		if err != nil {
			t.Fatal(err)
		}
		l.rec = rec
		l.look()
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			l.step()
		}
		for _, limit := range []int{1, 5, 20, 60, 1 << 20} {
			l.check(limit)
		}
	})
}

// life is a task as it goes on, and as it was after every event.
type life struct {
	t     *rapid.T
	db    *sqlite.DB
	rec   task.Record
	size  [2]uint64
	asked *task.Message
	was   map[uint64]task.Record
}

func (l *life) look() {
	now, err := l.db.Task(l.t.Context(), task.System(), l.rec.ID, task.View{History: -1, Inline: 1 << 20})
	if err != nil {
		l.t.Fatal(err)
	}
	l.rec = now
	l.was[now.LastSeq] = now
}

func (l *life) step() {
	if stream := rapid.IntRange(0, 3).Draw(l.t, "stream"); stream < 2 {
		c := task.Chunk{
			ArtifactID: []string{"stdout", "stderr"}[stream], Offset: l.size[stream],
			Data: rapid.SliceOfN(rapid.Byte(), 1, 12).Draw(l.t, "data"),
		}
		l.size[stream] += uint64(len(c.Data))
		if err := l.db.Output(l.t.Context(), l.rec.ID, []task.Chunk{c}, task.Progress{}); err != nil {
			l.t.Fatal(err)
		}
		l.look()
		return
	}
	key := fmt.Sprint("key", rapid.IntRange(0, 2).Draw(l.t, "key"))
	move := task.Transition{
		Version: l.rec.Version, Status: task.Status{State: task.Working},
		Metadata: task.Metadata{key: fmt.Append(nil, l.rec.LastSeq)},
	}
	if l.asked != nil {
		id := fmt.Sprint("answer", l.rec.LastSeq)
		move.Turns = []task.Message{*l.asked, {MessageID: id, Role: task.User, Parts: []task.Part{task.TextPart("y")}}}
		l.asked = nil
	} else if l.rec.Status.State == task.Working {
		id := fmt.Sprint("asks", l.rec.LastSeq)
		l.asked = &task.Message{MessageID: id, Role: task.Agent, Parts: []task.Part{task.TextPart("?")}}
		move.Status = task.Status{State: task.InputRequired, Message: l.asked}
	}
	if _, err := l.db.Move(l.t.Context(), l.rec.ID, move); err != nil {
		l.t.Fatal(err)
	}
	l.look()
}

func (l *life) check(limit int) {
	got, err := l.db.Task(l.t.Context(), task.System(), l.rec.ID, task.View{History: -1, Inline: limit, Consistent: true})
	if err != nil {
		l.t.Fatal(err)
	}
	text, rest := whole(got)
	wantText, wantRest := whole(l.was[got.LastSeq])
	if !reflect.DeepEqual(text, wantText) || !reflect.DeepEqual(rest, wantRest) {
		l.t.Errorf("limit %d, event %d: %v %+v, want %v %+v", limit, got.LastSeq, text, rest, wantText, wantRest)
	}
	for id, s := range text {
		if len(s) > limit {
			l.t.Errorf("%d bytes of %s are more than %d", len(s), id, limit)
		}
	}
	for last := got.LastSeq; last < l.rec.LastSeq; {
		events, err := l.db.Events(l.t.Context(), task.System(), l.rec.ID, last)
		if err != nil || len(events) == 0 {
			l.t.Fatal(events, err)
		}
		for _, e := range events {
			if last = e.Seq; e.Chunk != nil {
				text[e.Chunk.ArtifactID] += string(e.Chunk.Data)
			}
		}
	}
	if now, _ := whole(l.rec); !reflect.DeepEqual(text, now) {
		l.t.Errorf("limit %d: with what follows it is %v, want %v", limit, text, now)
	}
}

// TestInlineIsBounded: the first chunk is cut too, at a character; what has a
// meaning only whole is left out.
func TestInlineIsBounded(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	create(t, db, "t")
	text := strings.Repeat("aü€😀", 20)
	data := []byte(`{"key":"value"}`)
	chunks := []task.Chunk{
		{ArtifactID: "text", Data: []byte(text)},
		{ArtifactID: "raw", Data: []byte(strings.Repeat("\xff", 100))},
		{ArtifactID: "data", Data: data, Form: &task.Form{Kind: task.KindData}},
	}
	if err := db.Output(t.Context(), "t", chunks, task.Progress{}); err != nil {
		t.Fatal(err)
	}
	for limit := 1; limit < 250; limit++ {
		rec, err := db.Task(t.Context(), task.System(), "t", task.View{Inline: limit})
		if err != nil || len(rec.Artifacts) != 3 {
			t.Fatal(rec.Artifacts, err)
		}
		p, raw := rec.Artifacts[0].Parts[0], rec.Artifacts[1].Parts[0].Raw
		if p.Text == nil || !utf8.ValidString(*p.Text) || !strings.HasPrefix(text, *p.Text) ||
			len(*p.Text) > limit || len(*p.Text) < min(limit-3, len(text)) {
			t.Errorf("limit %d: text is %+v", limit, p)
		}
		if len(raw) != min(limit, 100) {
			t.Errorf("limit %d: %d raw bytes", limit, len(raw))
		}
		if d := rec.Artifacts[2].Parts[0].Data; (string(d) == string(data)) != (limit >= len(data)) || limit < len(data) && d != nil {
			t.Errorf("limit %d: data is %s", limit, d)
		}
	}
}

// TestListIsBounded goes through pages that end at a number of bytes, be they
// of artifacts, histories or metadata.
func TestListIsBounded(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	const tasks, each = 7, 1000
	var want []string
	big := task.Metadata{"x": []byte(`"` + strings.Repeat("x", each) + `"`)}
	for i := range tasks {
		n := newTask(fmt.Sprint("t", i))
		switch i % 3 {
		case 0:
			n.Metadata = big
		case 1:
			n.Message.Metadata = big
		}
		if _, err := db.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if i%3 == 2 {
			c := task.Chunk{ArtifactID: "stdout", Data: []byte(strings.Repeat("x", each))}
			if err := db.Output(t.Context(), n.ID, []task.Chunk{c}, task.Progress{}); err != nil {
				t.Fatal(err)
			}
		}
		want = append([]string{n.ID}, want...)
	}
	for bytes, most := range map[int]int{0: 4, 1: 1, 2 * each: 1, 3 * each: 2, 4 * each: 3, 100 * each: 4} {
		var got []string
		for after := (*task.Place)(nil); ; {
			f := task.Filter{InstanceID: anInstance, Limit: 4, Bytes: bytes, After: after}
			page, err := db.List(t.Context(), task.System(), f, task.View{History: -1, Inline: 1 << 20})
			if err != nil || page.Total != tasks || len(page.Tasks) == 0 || len(page.Tasks) > most ||
				page.Next != nil && len(page.Tasks) != most {
				t.Fatalf("%d bytes: %d tasks of %d, %v", bytes, len(page.Tasks), page.Total, err)
			}
			for _, rec := range page.Tasks {
				got = append(got, rec.ID)
			}
			if after = page.Next; after == nil {
				break
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d bytes: listed %v, want %v", bytes, got, want)
		}
	}
}
