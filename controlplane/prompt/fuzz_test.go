package prompt_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
)

// FuzzQuestions: the pieces that output comes in change nothing of what is
// asked, and neither does the end of the lines before; what is asked is the
// end of what was written, fit to be shown, and never a secret.
func FuzzQuestions(f *testing.F) {
	f.Add([]byte("building\nContinue? [y/N] "), uint8(3))
	f.Add([]byte("\x1b[1mOverwrite /etc/x?\x1b[0m (yes/no): "), uint8(1))
	f.Add([]byte("Password: "), uint8(2))
	f.Add([]byte("Enter the API token: "), uint8(200))
	f.Add([]byte("50%\r99%\rProceed? [Y/n]\xe2\x80"), uint8(0))
	f.Add([]byte("are you sure?\n"), uint8(7))
	f.Add([]byte(strings.Repeat("z", 3000)+" [y/n]"), uint8(255))
	f.Fuzz(func(t *testing.T, out []byte, cut uint8) {
		if last := out[bytes.LastIndexByte(out, '\n')+1:]; len(out) > 64<<10 || len(last) > 4000 {
			return // longer lines are kept in part
		}
		ask := func(pieces ...[]byte) (prompt.Question, bool) {
			c := newClock()
			d := prompt.Detector{Quiet: quiet}
			for _, p := range pieces {
				d.Write(0, p, c.pass(1))
			}
			return d.Question(c.pass(100 * quiet))
		}
		var pieces [][]byte
		for rest := out; len(rest) > 0; {
			n := min(int(cut)+1, len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		want, asked := ask(out)
		if got, ok := ask(pieces...); ok != asked || got != want {
			t.Fatalf("in pieces of %d %+v, whole %+v", cut+1, got, want)
		}
		if got, ok := ask([]byte("something before\n"), out); len(out) > 0 && (ok != asked || got != want) {
			t.Fatalf("behind another line %+v, alone %+v", got, want)
		}
		if !asked {
			return
		}
		checkText(t, want.Text)
		if want.Score != prompt.Score(want.Text) || want.Score < 0.85 || want.Score > 1 {
			t.Fatalf("%+v scores %v", want, prompt.Score(want.Text))
		}
		if again, ok := ask([]byte(want.Text)); !ok || again.Text != want.Text {
			t.Fatalf("%q was asked, and is not when it is written", want.Text)
		}
	})
}

// FuzzParseEnvelope: an envelope that is taken is in all its bounds, and comes
// back the same.
func FuzzParseEnvelope(f *testing.F) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e, err := prompt.NewText("Continue? [y/N]", now.Add(time.Minute))
	if err != nil {
		f.Fatal(err)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(bytes.Replace(raw, []byte(`["any"]`), []byte(`["specific:bob","consensus:2"]`), 1))
	f.Add(bytes.Replace(raw, []byte(`"prompt"`), []byte(`"more":1,"prompt"`), 1))
	f.Add([]byte(`{"prompt_id":"6ba7b810-9dad-41d1-80b4-00c04fd430c8","prompt":"x","response_schema":true,"deadline":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := prompt.ParseEnvelope(raw, now)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("refused without a rule")
			}
			return
		}
		if n := utf8.RuneCountInString(e.Prompt); n < 1 || n > prompt.MaxPrompt || len(e.ResponseSchema) > prompt.MaxSchema || e.Check(now) != nil {
			t.Fatalf("taken: %+v", e)
		}
		if err := e.CheckTextLine(now); err != nil && !errors.Is(err, prompt.ErrRestricted) {
			t.Fatal(err)
		}
		once, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := prompt.ParseEnvelope(once, now)
		if err != nil {
			t.Fatalf("%s was written and is refused: %v", once, err)
		}
		if twice, err := json.Marshal(again); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s became %s, %v", once, twice, err)
		}
	})
}
