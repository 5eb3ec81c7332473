package fleet

// FieldError is one thing that is wrong with a request, by its place: a
// member of the request, or a place in one of the files it carries.
type FieldError struct {
	// Field is a path such as "loadout.name", or "file:line:column: path".
	Field string
	// Message says what is wanted, in one sentence.
	Message string
	// Code is stable and machine-readable, such as "loadout.rule".
	Code string
}

// FieldErrors is an error made of several; a fault that carries one in its
// chain is shown field by field.
type FieldErrors interface {
	error
	Fields() []FieldError
}
