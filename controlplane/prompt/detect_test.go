package prompt_test

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
)

const quiet = time.Second

// clock is the time of a test: it moves only when told to.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) pass(d time.Duration) time.Time {
	c.now = c.now.Add(d)
	return c.now
}

// ask writes output and says what is asked after enough quiet.
func ask(output string) (prompt.Question, bool) {
	c := newClock()
	d := prompt.Detector{Quiet: quiet}
	d.Write(0, []byte(output), c.now)
	return d.Question(c.pass(quiet))
}

func TestQuestions(t *testing.T) {
	for _, s := range []string{
		"Continue? [y/N] ", "Continue? [Y/n]", "Proceed (y/n)? ", "Do it? (yes/no): ", "Overwrite a.txt? (yes/no/all) ",
		"Apply (yes/no) [no]: ", "Remove? <y/N> ", "Do you want to continue? [Y/n] ", "really? {y,n}", "Replace it? [y,n,a,q,?] ",
		"The fingerprint is unknown (yes/no/[fingerprint])? ", "[N/y] ", "(Y or N) ", "Is this OK (yes or no)? ",
		"Are you sure? ", "Are you sure you want to delete everything? ", "Continue?", "Proceed? ", "Would you like to go on? ",
		"Press enter to continue", "Press ENTER to continue...", "Press any key to continue . . .", "Hit return: ", "Press [Enter] key",
		"Type 'yes' to go on: ", "Type yes or no: ", "Enter a value: ", "Please choose an option: ", "Select a plan [1-3]: ",
		"a: 1\nb: 2\nContinue? [y/N] ", "\x1b[1;32m?\x1b[0m Continue? \x1b[2m[y/N]\x1b[0m ", "50%\r100%\rContinue? [y/N] ", "Save password? [y/N] ",
		strings.Repeat("x", 20<<10) + "\nOk? (y/n) ", strings.Repeat("x", 20<<10) + " Ok? (y/n) ",
	} {
		q, ok := ask(s)
		if !ok || q.Text == "" {
			t.Errorf("%.60q is not taken for a question", s)
		}
	}
	if q, _ := ask("one\n\x1b[1mContinue?\x1b[0m\t[y/N] "); q.Text != "Continue? [y/N]" {
		t.Errorf("the text is %q", q.Text)
	}
}

func TestNoQuestions(t *testing.T) {
	for _, s := range []string{
		"", " ", "\n", "\n\n", "Building…", "working [50%]", "progress: 10/20", "step (3/7) ", "$ ", "# ", "> ", ">>> ", "https://x/y/n ", "a[y/n]b",
		"Continue? [y/N] \nno", "Continue? [y/N] \n\n", "What happened? Nobody knows. ", "why? ", "name: ", "Continue?\n", "Enter a value:\n",
		"Password: ", "[sudo] password for agent: ", "Enter passphrase for key '/x': ", "Enter your API key: ", "Please enter the token: ",
		"Enter PIN: ", "One-time password: ", "Enter verification code: ", "Enter password (again):", "Type the secret: ",
		"are you sure", "[yellow/navy]", "options: y/n are both fine, see below",
	} {
		if q, ok := ask(s); ok {
			t.Errorf("%q is taken for the question %q (%.2f)", s, q.Text, q.Score)
		}
	}
}

// TestLineWithAnEnd: only a choice counts, only on the very last line, and
// only after more quiet.
func TestLineWithAnEnd(t *testing.T) {
	c := newClock()
	d := prompt.Detector{Quiet: quiet}
	d.Write(0, []byte("Continue? [y/N]\n"), c.now)
	if _, ok := d.Question(c.pass(quiet)); ok {
		t.Error("asked as soon as a line without an end")
	}
	due, ok := d.Due(c.now)
	if !ok {
		t.Fatal("nothing is due")
	}
	if _, ok := d.Question(due); !ok {
		t.Error("not asked when due")
	}
	d.Write(1, []byte("log\n"), c.now)
	if _, ok := d.Question(c.pass(100 * quiet)); ok {
		t.Error("asked although it is not the last line")
	}
}

func TestQuiet(t *testing.T) {
	c := newClock()
	d := prompt.Detector{Quiet: quiet}
	if _, ok := d.Due(c.now); ok {
		t.Error("something is due without output")
	}
	d.Write(0, []byte("Continue? [y"), c.now)
	d.Write(0, []byte("/N] "), c.pass(quiet-1))
	if _, ok := d.Question(c.pass(1)); ok {
		t.Error("asked although it was just written")
	}
	due, ok := d.Due(c.now)
	if !ok || due.Sub(c.now) != quiet-1 {
		t.Fatalf("due %v, %v", due, ok)
	}
	q, ok := d.Question(due)
	if !ok || q.Stream != 0 {
		t.Fatal("not asked when due")
	}
	if _, ok := d.Due(due); ok {
		t.Error("still due: that would be polling")
	}
	// Noise on the other stream does not end the question of this one.
	d.Write(1, []byte("log\n"), due)
	if q, ok := d.Question(due.Add(quiet)); !ok || q.Stream != 0 {
		t.Error("lost the question to the other stream")
	}
	d.Forget()
	if _, ok := d.Question(due.Add(100 * quiet)); ok {
		t.Error("asked again after it was answered")
	}
	d.Write(0, []byte("Really? [y/N] "), due.Add(100*quiet))
	if q, _ := d.Question(due.Add(101 * quiet)); q.Text != "Really? [y/N]" {
		t.Errorf("the text is %q", q.Text)
	}
}

// TestChunks: how output is cut into pieces changes nothing, and the text is
// always fit to be shown.
func TestChunks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pieces := rapid.SliceOf(rapid.OneOf(
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 40), func(b []byte) string { return string(b) }),
			rapid.SampledFrom([]string{"Continue? [y/N] ", "\n", "\x1b[0m", "\r", "[y/N]", "Password: ", strings.Repeat("z", 5000)}),
		)).Draw(rt, "pieces")
		whole := strings.Join(pieces, "")
		c := newClock()
		d := prompt.Detector{Quiet: quiet}
		for _, p := range pieces {
			d.Write(0, []byte(p), c.pass(time.Millisecond))
			if _, ok := d.Question(c.now); ok {
				rt.Fatal("asked without quiet")
			}
		}
		c.pass(100 * quiet)
		got, ok := d.Question(c.now)
		if last := whole[strings.LastIndexByte(whole, '\n')+1:]; len(last) > 0 {
			want, wok := ask(whole[max(0, len(whole)-6000):])
			if len(last) < 4000 && (ok != wok || got.Text != want.Text) {
				rt.Fatalf("in pieces %v %q, whole %v %q", ok, got.Text, wok, want.Text)
			}
		}
		if ok {
			checkText(rt, got.Text)
		}
	})
}

func checkText(t interface {
	Helper()
	Fatalf(string, ...any)
}, s string) {
	t.Helper()
	if n := utf8.RuneCountInString(s); n < 1 || n > prompt.MaxPrompt || !utf8.ValidString(s) {
		t.Fatalf("a text of %d characters: %q", n, s)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			t.Fatalf("%q has a control character", s)
		}
	}
}

func FuzzDetector(f *testing.F) {
	f.Add([]byte("Continue? [y/N] "), []byte("x\n"), uint8(3))
	f.Add([]byte("\x1b]0;t\x07Ok? (y/n)\r"), []byte{0xff, 0xfe}, uint8(1))
	f.Fuzz(func(t *testing.T, out, errs []byte, cut uint8) {
		c := newClock()
		d := prompt.Detector{Quiet: quiet}
		for len(out) > 0 {
			n := min(int(cut)+1, len(out))
			d.Write(0, out[:n], c.pass(1))
			out = out[n:]
		}
		d.Write(1, errs, c.pass(1))
		if _, ok := d.Question(c.now); ok {
			t.Fatal("asked without quiet")
		}
		for range 4 {
			due, ok := d.Due(c.now)
			if !ok {
				break
			}
			if !due.After(c.now) {
				t.Fatal("due in the past: that would be polling")
			}
			c.now = due
			if q, ok := d.Question(due); ok {
				checkText(t, q.Text)
				e, err := prompt.NewText(q.Text, due.Add(time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				if err := e.CheckTextLine(due); err != nil {
					t.Fatalf("the envelope of %q: %v", q.Text, err)
				}
			}
		}
	})
}

// TestRetainsLittle: what a detector holds does not grow with the output.
func TestRetainsLittle(t *testing.T) {
	c := newClock()
	d := prompt.Detector{Quiet: quiet}
	chunk := bytes.Repeat([]byte("abc "), 16<<10)
	d.Write(0, chunk, c.now)
	n := testing.AllocsPerRun(100, func() { d.Write(0, chunk, c.now); d.Write(0, []byte("[y/N] "), c.now) })
	if n > 0 {
		t.Errorf("a write makes %v allocations", n)
	}
}
