// Package idempotency names messages that are to be carried out once: by whom
// they were sent, to which instance, under which id, and with which content.
// It computes only; who waits for whom and what is kept is decided elsewhere.
package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/jcs"
)

// How content is compared, as the extension's params name it.
const (
	Canonicalization = "jcs-rfc8785"
	HashAlgorithm    = "sha-256"
)

// Key names a message. Two principals, and two instances, never share one; a
// principal is one of its tenant.
type Key struct {
	Tenant    string // empty for the default tenant
	Principal string
	Instance  instance.ID
	MessageID string
}

// Reservation is what is known of a message.
type Reservation struct {
	// Hash is that of the first request's content.
	Hash string
	// TaskID is the id of the message's task, if one was made. It is chosen
	// before, so that one look tells whether there is one, whatever died since.
	TaskID string
	// Answered says that the message has been dealt with. Answer is what its
	// sender stored, nil if that can be made again from the task.
	Answered bool
	Answer   []byte
}

// Bounds limit what is remembered.
type Bounds struct {
	// TTL is how long a message is remembered after its first request.
	TTL time.Duration
	// Entries is how many messages of one principal are; the oldest answered
	// ones are forgotten first.
	Entries int
}

// Errors of Fingerprint.
var (
	// ErrShape: the params have no message that could be compared; whoever
	// decodes them will say what is wrong.
	ErrShape = errors.New("the params hold no message")
	// ErrMessageID: the message's id is no UUID.
	ErrMessageID = errors.New("the message id must be a UUID, such as one of version 7 or 4")
)

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Fingerprint returns the message's id, in lower case, and the hash of the
// rest of the params: SHA-256, in lower-case hexadecimal, of their canonical
// form without the id.
func Fingerprint(params []byte) (messageID, hash string, err error) {
	var members, message map[string]json.RawMessage
	if json.Unmarshal(params, &members) != nil || json.Unmarshal(members["message"], &message) != nil || message == nil {
		return "", "", ErrShape
	}
	for _, name := range []string{"message_id", "messageId"} { // the latter wins, as everywhere
		if raw, ok := message[name]; ok && json.Unmarshal(raw, &messageID) != nil { // null changes nothing
			return "", "", ErrMessageID
		}
		delete(message, name)
	}
	if !uuidForm.MatchString(messageID) {
		return "", "", ErrMessageID
	}
	if members["message"], err = encode(message); err != nil {
		return "", "", err
	}
	rest, err := encode(members)
	if err != nil {
		return "", "", err
	}
	form, err := jcs.Transform(rest)
	if err != nil {
		return "", "", fmt.Errorf("cannot compare params: %w", err)
	}
	sum := sha256.Sum256(form)
	return strings.ToLower(messageID), hex.EncodeToString(sum[:]), nil
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("cannot encode params: %w", err)
	}
	return b.Bytes(), nil
}
