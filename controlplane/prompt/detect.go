package prompt

import (
	"bytes"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// window bounds the output a detector retains, in bytes, over both streams.
	window = 8 << 10
	// maxLine is how much of the last line of one stream it retains.
	maxLine = window / 2
	// patience multiplies the quiet that a line with an end must be followed by.
	patience = 4
)

// Question is a prompt found in output.
type Question struct {
	Text   string // printable, 1 to MaxPrompt characters
	Stream int    // whose last line it is
	Score  float64
}

// Detector finds a question on the last line of a command's output. It
// retains no more than that line of each stream, at most 8 KiB in all. Its
// time is what the caller says. Not safe for concurrent use.
type Detector struct {
	// Quiet is how long nothing may be written before a line counts as the
	// last one.
	Quiet time.Duration

	lines [2]line
	last  int // the stream written last
	wrote time.Time
}

// line is the last line of a stream.
type line struct {
	text  []byte // without its end
	ended bool   // by a newline, after which nothing came
}

// Write takes output of a stream, 0 or 1.
func (d *Detector) Write(stream int, data []byte, now time.Time) {
	if stream < 0 || stream >= len(d.lines) || len(data) == 0 {
		return
	}
	d.last, d.wrote = stream, now
	l := &d.lines[stream]
	if l.ended {
		l.text, l.ended = l.text[:0], false
	}
	body := data
	if data[len(data)-1] == '\n' {
		body, l.ended = data[:len(data)-1], true
	}
	if i := bytes.LastIndexByte(body, '\n'); i >= 0 {
		l.text, body = l.text[:0], body[i+1:]
	}
	if len(body) >= maxLine {
		l.text, body = l.text[:0], body[len(body)-maxLine:]
	}
	if over := len(l.text) + len(body) - maxLine; over > 0 {
		l.text = l.text[:copy(l.text, l.text[over:])]
	}
	if l.text == nil {
		l.text = make([]byte, 0, 128)
	}
	l.text = append(l.text, body...)
}

// Forget drops what was written so far: it has been answered.
func (d *Detector) Forget() {
	for i := range d.lines {
		d.lines[i] = line{text: d.lines[i].text[:0]}
	}
}

// Touch begins the quiet anew without output.
func (d *Detector) Touch(now time.Time) { d.wrote = now }

// Due is when to ask Question next if nothing is written until then; false if
// only more output can bring a question.
func (d *Detector) Due(now time.Time) (time.Time, bool) {
	var due time.Time
	for i := range d.lines {
		l := &d.lines[i]
		if len(l.text) == 0 {
			continue
		}
		at := d.wrote.Add(d.wait(l))
		if at.After(now) && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due, !due.IsZero()
}

func (d *Detector) wait(l *line) time.Duration {
	if l.ended {
		return patience * d.Quiet
	}
	return d.Quiet
}

// Question returns what is asked, if the output has been quiet for long enough
// and its last line is a question beyond doubt. The stream written last comes
// first; the other one's last line still waits if it has no end.
func (d *Detector) Question(now time.Time) (Question, bool) {
	for _, i := range [2]int{d.last, 1 - d.last} {
		l := &d.lines[i]
		if len(l.text) == 0 || now.Sub(d.wrote) < d.wait(l) || l.ended && i != d.last {
			continue
		}
		text := clean(l.text)
		score := Score(text)
		if l.ended && score < ended || score < threshold {
			continue
		}
		return Question{Text: text, Stream: i, Score: score}, true
	}
	return Question{}, false
}

const (
	// threshold is the score from which on a line is a question.
	threshold = 0.85
	// ended is the score from which on a line that has an end is one, too:
	// programs end many lines and few questions.
	ended = 0.95
	// maxScored is how much of a line's end is looked at, in bytes.
	maxScored = 1024
)

// rule is one form of questions; pattern is of the line without its blanks
// around, in lower case.
type rule struct {
	score   float64
	pattern *regexp.Regexp
}

// rules are ordered by their score.
func rules() []rule {
	// A choice between answers, with what may follow it.
	const tail = `\s*(\[[^\[\]]{0,32}\]|\(default[^()]{0,32}\))?\s*[?:>]*$`
	return []rule{
		{0.95, regexp.MustCompile(`[\[(<{]\s*(y|yes)\s*[/|,]\s*(n|no)(\s*[/|,]\s*[a-z?\[\]]{1,16}){0,6}\s*[\])>}]` + tail)},
		{0.95, regexp.MustCompile(`[\[(<{]\s*(n|no)\s*[/|,]\s*(y|yes)\s*[\])>}]` + tail)},
		{0.95, regexp.MustCompile(`\(\s*(y|yes)\s+or\s+(n|no)\s*\)` + tail)},
		{0.90, regexp.MustCompile(`(^|[\s>])(yes\s*/\s*no|y\s*/\s*n)\s*[?:>]+$`)},
		{0.90, regexp.MustCompile(`(^|\W)are you sure\b[^?]*(\?|\?\s*[:>])$`)},
		{0.90, regexp.MustCompile(`(^|\W)(press|hit|strike)\s+(the\s+)?[\[<(]?(enter|return|any key)[\])>]?(\s+key)?` +
			`(\s+(to|when|for|and|or)\b.*)?\s*[.:…]*$`)},
		{0.90, regexp.MustCompile(`(^|[.!?:]\s|^\W+)(do you (really )?(want|wish)|would you like|ok to|okay to|is (this|that) ok(ay)?|` +
			`shall (i|we))\b[^?]*\?\s*[:>]?$`)},
		{0.90, regexp.MustCompile(`(^|[.!?:,;>]\s*|\s)(continue|proceed|overwrite|replace|retry|try again|confirm|accept|install)` +
			`\b[^?.]*\?\s*[:>]?$`)},
		{0.90, regexp.MustCompile(`(^|\W)(type|enter)\s+["'` + "`" + `]?(y|yes)["'` + "`" + `]?` +
			`(\s*(,|or|/)\s*["'` + "`" + `]?(n|no)["'` + "`" + `]?)?\b.*[?:>]$`)},
		{0.85, regexp.MustCompile(`(^|[.!?]\s+|^\W+)(please\s+)?(enter|type|choose|select|pick|specify|input|provide)\s.*[?:>]$`)},
		{0.60, regexp.MustCompile(`\?\s*[:>]?$`)},
		{0.40, regexp.MustCompile(`[:>]$`)},
	}
}

// credential finds a line that asks for a secret.
func credential() *regexp.Regexp {
	return regexp.MustCompile(`pass\s?(word|phrase|code|wd)|\bsecret\b|\btoken\b|api[\s_-]?key|private key|access key|\bpin\b|\botp\b|` +
		`one[\s-]time|verification code|\b2fa\b|\bmfa\b|credential`)
}

// forms are the compiled rules; there is no state in them.
var (
	forms     = rules()
	secretive = credential()
)

// Score says how surely a line waits for an answer, from 0 to 1. A line that
// asks for a secret scores 0: a text-line prompt is stored and shown to
// everybody who may see the task, so secrets are not asked for this way. A
// choice of yes and no about a secret asks for none.
func Score(text string) float64 {
	text = strings.TrimSpace(text)
	if len(text) > maxScored {
		text = text[len(text)-maxScored:]
	}
	low := strings.ToLower(text)
	for _, r := range forms {
		if !r.pattern.MatchString(low) {
			continue
		}
		if r.score < 0.95 && secretive.MatchString(low) {
			return 0
		}
		return r.score
	}
	return 0
}

var escapes = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])`)

// clean is a line as somebody would see it: without what moves cursors and
// sets colours, and what a carriage return has written over.
func clean(raw []byte) string {
	s := strings.ToValidUTF8(string(raw), "\uFFFD")
	s = escapes.ReplaceAllString(s, "")
	s = strings.TrimRight(s, "\r")
	if i := strings.LastIndexByte(s, '\r'); i >= 0 {
		s = s[i+1:]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r): // also what turns the direction of writing
			return -1
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	for utf8.RuneCountInString(s) > MaxPrompt { // the window is no longer, so not reached
		_, n := utf8.DecodeRuneInString(s)
		s = s[n:]
	}
	return s
}
