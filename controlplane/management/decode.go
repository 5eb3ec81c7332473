package management

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const (
	defaultPage = 200
	maxPage     = 1000
	maxCursor   = 256
	maxShown    = 128
	maxTTL      = 365 * 24 * time.Hour
	maxDuration = 32 // bytes
)

// The media types of bodies.
const (
	mediaJSON       = "application/json"
	mediaMergePatch = "application/merge-patch+json"
	mediaTar        = "application/x-tar"
)

// decode reads one JSON value and nothing after it into v. Members that
// nobody knows are refused: a misspelt one would be ignored in silence.
func decode(w http.ResponseWriter, r *http.Request, v any, media ...string) error {
	if err := wantMedia(r, media...); err != nil {
		return err
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	dec.DisallowUnknownFields()
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return malformed(err)
	}
	if len(raw) == 0 || raw[0] != '{' {
		return callerFault(codeMalformed, "send one JSON object", "the body is no JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return callerFault(codeMalformed, "send one JSON object", "the body goes on after its first JSON value")
	}
	if err := refuseNulls(raw, slices.Contains(media, mediaMergePatch)); err != nil {
		return err
	}
	inner := json.NewDecoder(bytes.NewReader(raw))
	inner.DisallowUnknownFields()
	if err := inner.Decode(v); err != nil {
		return malformed(err)
	}
	return nil
}

// refuseNulls finds members that are null: to the decoder they would be as if
// they were not there. In a merge patch null removes what is in a map.
func refuseNulls(raw json.RawMessage, patch bool) error {
	var body map[string]json.RawMessage
	if err := json.Unmarshal(raw, &body); err != nil {
		return malformed(err)
	}
	var bad invalid
	for name, value := range body {
		var inner map[string]json.RawMessage
		null := func(field string, v json.RawMessage) {
			if string(v) == "null" {
				bad = append(bad, fleet.FieldError{Field: field, Code: "field.type", Message: "must not be null"})
			}
		}
		null(name, value)
		if json.Unmarshal(value, &inner) != nil || patch {
			continue // no object, or one whose members may be null
		}
		for member, v := range inner {
			null(name+"."+clip(member), v)
			var innermost map[string]json.RawMessage
			if json.Unmarshal(v, &innermost) == nil {
				for last, v := range innermost {
					null(name+"."+clip(member)+"."+clip(last), v)
				}
			}
		}
	}
	return bad.sorted().or(codeMalformed)
}

func malformed(err error) error {
	var (
		tooLarge *http.MaxBytesError
		wrong    *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, io.EOF):
		return callerFault(codeMalformed, "send one JSON object", "the body is empty")
	case errors.As(err, &wrong):
		field := wrong.Field
		if field == "" {
			field = "body"
		}
		return invalid{{Field: field, Code: "field.type",
			Message: "want " + typeWord(wrong.Type) + ", found " + jsonWord(wrong.Value)}}.or(codeMalformed)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return invalid{{Field: strings.Trim(name, `"`), Code: "field.unknown",
			Message: "there is no such member"}}.or(codeMalformed)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return callerFault(codeMalformed, "send one whole JSON object", "the body ends within its JSON value")
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return callerFault(codeMalformed, "send one JSON object", "the body is no JSON: %s, at byte %d", syntax.Error(), syntax.Offset)
	}
	return callerFault(codeMalformed, "", "cannot read body: %v", err)
}

// typeWord is what JSON calls the values of a type.
func typeWord(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // no body has others
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Pointer:
		return typeWord(t.Elem())
	}
	return "an object"
}

// jsonWord is the word for what encoding/json found.
func jsonWord(found string) string {
	kind, number, _ := strings.Cut(found, " ")
	switch kind {
	case "string":
		return "a text"
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "number":
		if number == "" {
			return "a number"
		}
		return "the number " + clip(number)
	}
	return clip(found)
}

func wantMedia(r *http.Request, want ...string) error {
	got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || !slices.Contains(want, got) {
		return callerFault(codeMediaType, "send the header Content-Type: "+want[0],
			"the body is of type %q", clip(r.Header.Get("Content-Type")))
	}
	return nil
}

// cursorKind is the list that a cursor belongs to.
type cursorKind string

const (
	cursorInstance  cursorKind = "i"
	cursorOperation cursorKind = "o"
	cursorEvent     cursorKind = "e"
)

// cursorOf is the cursor of what follows the item with that key; none is
// needed behind the last.
func cursorOf(kind cursorKind, key string) string {
	if key == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(string(kind) + "." + key))
}

// cursor reads a cursor of a list: the key of the last item of the page
// before, empty for the first page. What a client made up is refused unless
// it could be ours.
func cursor(kind cursorKind, s *string) (string, error) {
	if s == nil || *s == "" {
		return "", nil
	}
	refused := invalid{{Field: "cursor", Code: "parameter.form",
		Message: "want next_cursor of an earlier answer of this list"}}.or(codeInvalidParameter)
	if len(*s) > maxCursor {
		return "", refused
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(*s)
	if err != nil {
		return "", refused
	}
	key, ok := strings.CutPrefix(string(data), string(kind)+".")
	if !ok {
		return "", refused
	}
	switch kind {
	case cursorInstance, cursorOperation:
		_, err = instance.ParseID(key) // operations are named the same way
	case cursorEvent:
		_, err = eventNumber(key)
	}
	if err != nil {
		return "", refused
	}
	return key, nil
}

// eventNumber reads the number of an event in its one spelling.
func eventNumber(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err == nil && strconv.FormatUint(n, 10) != s {
		err = fmt.Errorf("want %d, found %q", n, clip(s))
	}
	return n, err
}

func pageSize(limit *int) (int, error) {
	if limit == nil {
		return defaultPage, nil
	}
	if *limit < 1 || *limit > maxPage {
		return 0, invalid{{Field: "limit", Code: "parameter.range",
			Message: "want a number from 1 to 1000"}}.or(codeInvalidParameter)
	}
	return *limit, nil
}

// durationRule is that of the document. It keeps out what time.ParseDuration
// takes besides, such as 1.5h and 1ns.
var durationRule = regexp.MustCompile(`^([0-9]{1,8}h)?([0-9]{1,8}m)?([0-9]{1,9}s)?$`)

// duration reads a time such as 1h30m of a request's body; empty is 0.
func duration(field, s string, longest time.Duration) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(clip(s))
	if err != nil || !durationRule.MatchString(s) || len(s) > maxDuration || d < 0 || d > longest {
		return 0, invalid{{Field: field, Code: "field.invalid",
			Message: fmt.Sprintf("%q is no time such as 90s, 4h or 1h30m, of at most %s", clip(s), longest)}}.or(codeInvalid)
	}
	return d, nil
}

// clip bounds what is repeated of a request.
func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return s[:maxShown] + "…"
}

var _ fleet.FieldErrors = invalid(nil)
